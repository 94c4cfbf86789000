"""Composition root of the service whose workers sleep."""

from benchmarks.sleeping import BACKEND
from smallplates.settings import Settings
from smallplates.web.app import create_app

app = create_app(Settings(), BACKEND)
