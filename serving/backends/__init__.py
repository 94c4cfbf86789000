"""What the CUDA and CPU backends implement and share."""
