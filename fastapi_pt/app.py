"""Composition root: `python -m serving fastapi_pt`, or `uvicorn fastapi_pt.app:app`."""

from fastapi_pt import BACKEND
from serving.app import create_app
from serving.settings import Settings

app = create_app(Settings(), BACKEND)
