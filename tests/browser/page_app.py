"""Application of the page for tests: in this process, in front of a stub."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import Flask
from jinja2 import FileSystemBytecodeCache

from flask_app.app import create_app
from flask_app.samples import SAMPLES
from flask_app.settings import Settings
from tests.browser.stub_api import StubApi

PHOTO = SAMPLES[0].read().content
JPEG = {"Content-Type": "image/jpeg"}


@contextmanager
def page_app(stub: StubApi, **fields: Any) -> Iterator[Flask]:  # Any: fields of Settings
    """Yields the application; closes its connections at the end."""
    app = create_app(Settings(api_url=stub.url, **fields))
    app.jinja_env.bytecode_cache = FileSystemBytecodeCache()  # once for all tests
    try:
        yield app
    finally:
        app.extensions["api"].close()


def form(*files: tuple[bytes, str]) -> dict[str, list[tuple[io.BytesIO, str]]]:
    """Returns a form of photos and their names, as Flask's test client takes it."""
    return {"photo": [(io.BytesIO(content), name) for content, name in files]}
