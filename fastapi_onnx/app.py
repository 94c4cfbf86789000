"""Composition root: `python -m smallplates.service fastapi_onnx`, or `uvicorn fastapi_onnx.app:app`."""

from fastapi_onnx import BACKEND
from smallplates.settings import Settings
from smallplates.web.app import create_app

app = create_app(Settings(), BACKEND)
