"""Composition root of the fake service."""

from serving.app import create_app
from serving.settings import Settings
from tests.fake import BACKEND

app = create_app(Settings(), BACKEND)
