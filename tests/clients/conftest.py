"""A service that libraries call; `make test-clients` runs these tests in an environment of their own."""

from collections.abc import Iterator

import pytest

from tests import text_service


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a service whose default model makes embeddings."""
    with text_service.running(tmp_path_factory.mktemp("texts")) as url:
        yield url
