"""Services with folders that transformers and optimum have written.

`make test-transformers` runs these tests in an environment with transformers 4.57.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import servers

BACKENDS = ("fastapi_onnx", "fastapi_pt")


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a folder by a function of `folders`, once for the same arguments."""
    made: dict[str, Path] = {}

    def make(function: Callable[..., Path], *arguments: str, **changes: str) -> Path:
        name = "-".join([function.__name__, *arguments, *changes.values()])
        if name not in made:
            made[name] = function(tmp_path_factory.mktemp("models") / name, *arguments, **changes)
        return made[name]

    return make


@contextmanager
def service(backend: str, folder: Path) -> Iterator[str]:
    """Base URL of a service that truncates long texts."""
    env = {
        "SERVING_MODEL_DIR": str(folder),
        "SERVING_LOG_LEVEL": "error",
        "SERVING_INSTANCES": "1",
        "SERVING_LONG_TEXT": "truncate",
    }
    with servers.api(backend, env) as url:
        yield url
