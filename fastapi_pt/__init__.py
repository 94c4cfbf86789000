"""The service with PyTorch as its backend."""

BACKEND = "fastapi_pt.backend:TorchBackend"
