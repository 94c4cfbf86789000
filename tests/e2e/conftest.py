"""A model that needs no weights, and services of the fake backend that serve it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

CLASSES = 4096


def write_model(folder: Path, version: str, prefix: str = "", classes: int = CLASSES) -> None:
    """8x8 pictures, classes named PREFIX0, PREFIX1 and so on; nothing for a real backend to load."""
    description = {
        "name": "fake",
        "version": version,
        "labels": [f"{prefix}{index}" for index in range(classes)],
        "image": {"resize": [8, 8], "mean": [0, 0, 0], "std": [1, 1, 1]},
        "files": {},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.json").write_text(json.dumps(description))


@pytest.fixture(scope="session")
def fake_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder; the class names are the class indices."""
    folder = tmp_path_factory.mktemp("models") / "fake"
    write_model(folder, "1")
    return folder


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """Held computations end when this file exists."""
    path = tmp_path / "gate"
    yield path
    path.touch()


@pytest.fixture
def fake_settings(fake_model: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a fake service; its gate and its brokenness are files in `tmp_path`."""
    return {
        "SERVING_MODEL_DIR": str(fake_model),
        "SERVING_INSTANCES": "2",
        "SERVING_LOG_LEVEL": "error",
        "SERVING_WORKER_TIMEOUT_MS": "60000",
        "FAKE_GATE": str(tmp_path / "gate"),
        "FAKE_BROKEN": str(tmp_path / "broken"),
        "FAKE_LOADING": str(tmp_path / "loading"),
    }
