"""`serving.engine.scratch`: folders of services that have ended are removed."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from serving.engine import scratch


def test_scratch_of_a_killed_service_is_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f"{scratch.PREFIX}{dead.pid}-abc"
    (left / "weights").mkdir(parents=True)
    other = tmp_path / "other"
    other.mkdir()
    running = scratch.create()
    second = scratch.create()
    assert running
    assert second
    assert running.is_dir()
    assert not left.exists()
    assert other.is_dir()
    scratch.remove(running)
    assert not running.exists()


def test_without_a_place_to_write_there_is_no_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert scratch.create() is None
    scratch.remove(None)
