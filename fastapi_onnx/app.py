"""Composition root: `uvicorn fastapi_onnx.app:app`."""

from fastapi_onnx.backend import OnnxBackend
from serving.app import create_app
from serving.settings import Settings

app = create_app(Settings(), OnnxBackend)
