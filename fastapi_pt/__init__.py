"""The service with PyTorch as its backend."""
