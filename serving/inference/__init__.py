"""The core call that every protocol makes, and the model in service."""
