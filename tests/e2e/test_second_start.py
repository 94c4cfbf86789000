"""A service that is started again reuses what it has measured, if its operator names a folder."""

from pathlib import Path
from typing import Any

import pytest
import requests

from tests.e2e.services import fake_service

pytestmark = pytest.mark.slow
MEASURED = ("workers", "threads", "layout_reason", "batch_ms", "max_batch_size")


def start(settings: dict[str, str], folder: Path, **more: str) -> tuple[str | None, dict[str, Any]]:
    """When the measurements of a new service were made earlier, and what they say."""
    own = settings | {"SERVING_INSTANCES": "auto", "SERVING_CACHE_DIR": str(folder)} | more
    with fake_service(own) as (url, _):
        model = requests.get(f"{url}/model", timeout=60).json()
    return model["measured_at"], {name: model[name] for name in MEASURED}


def test_a_second_start_measures_nothing_and_one_with_other_settings_does(
    fake_settings: dict[str, str], tmp_path: Path
) -> None:
    slow, quick = {"FAKE_MS": "8", "FAKE_SCALES": "1"}, {"FAKE_MS": "2"}
    earlier, first = start(fake_settings, tmp_path / "cache", **slow)
    assert earlier is None
    earlier, second = start(fake_settings, tmp_path / "cache", **quick)
    assert earlier is not None
    assert second == first
    earlier, other = start(fake_settings, tmp_path / "cache", **quick, SERVING_MAX_BATCH_SIZE="4")
    assert earlier is None
    assert other["batch_ms"] != first["batch_ms"]
