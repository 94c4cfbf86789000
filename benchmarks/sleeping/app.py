"""Composition root of the service whose workers sleep."""

from benchmarks.sleeping import BACKEND
from serving.app import create_app
from serving.settings import Settings

app = create_app(Settings(), BACKEND)
