"""Composition root: `uvicorn fastapi_pt.app:app`."""

from fastapi_pt.backend import TorchBackend
from serving.app import create_app
from serving.settings import Settings

app = create_app(Settings(), TorchBackend)
