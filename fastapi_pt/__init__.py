"""Service with the PyTorch backend: `python -m serving fastapi_pt`."""

BACKEND = "fastapi_pt.backend:TorchBackend"
