"""Composition root: `python -m serving fastapi_onnx`, or `uvicorn fastapi_onnx.app:app`."""

from fastapi_onnx import BACKEND
from serving.app import create_app
from serving.settings import Settings

app = create_app(Settings(), BACKEND)
