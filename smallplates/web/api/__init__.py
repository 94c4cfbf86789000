"""What the protocols share."""
