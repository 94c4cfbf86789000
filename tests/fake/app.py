"""Composition root of the fake service."""

from smallplates.settings import Settings
from smallplates.web.app import create_app
from tests.fake import BACKEND

app = create_app(Settings(), BACKEND)
