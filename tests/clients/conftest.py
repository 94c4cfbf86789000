"""A service that libraries call; `make test-clients` runs these tests in an environment of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import text_service


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all tests of this folder."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.clients)


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a service whose default model makes embeddings."""
    with text_service.running(tmp_path_factory.mktemp("texts")) as url:
        yield url
