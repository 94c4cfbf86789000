"""Service with the PyTorch backend: `python -m smallplates.service fastapi_pt`."""

BACKEND = "fastapi_pt.backend:TorchBackend"
