"""Composition root: `python -m smallplates.service fastapi_pt`, or `uvicorn fastapi_pt.app:app`."""

from fastapi_pt import BACKEND
from smallplates.settings import Settings
from smallplates.web.app import create_app

app = create_app(Settings(), BACKEND)
