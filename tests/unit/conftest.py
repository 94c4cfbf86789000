"""The shipped model and pictures for it; a page in front of a stub of the API."""

from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest
import structlog
from flask.testing import FlaskClient
from numpy.typing import NDArray

from smallplates.logging import logger
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.worker import choice, precision_check
from tests.browser.page_app import page_app
from tests.browser.stub_api import StubApi, stub_api

TOO_SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("any machine", deadline=None, suppress_health_check=TOO_SLOW)
hypothesis.settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def log_format() -> Iterator[None]:
    """Gives the next test the log's format from before this one, whatever order the tests run in."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
    logger.cache_clear()


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.read(Settings().model_dir)


@pytest.fixture(scope="module")
def pixels(model: Model) -> NDArray[np.uint8]:
    return precision_check.sample_images(model.description.pipeline.output_size)


@pytest.fixture
def any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that agrees is taken, however fast it and the reference are."""
    monkeypatch.setattr(choice, "QUICK_MS", 0)
    monkeypatch.setattr(choice, "MAX_TIME_RATIO", float("inf"))


@pytest.fixture
def stub() -> Iterator[StubApi]:
    with stub_api() as running:
        yield running


@pytest.fixture
def client(stub: StubApi) -> Iterator[FlaskClient]:
    """A client of the page before it."""
    with page_app(stub) as app:
        yield app.test_client()
