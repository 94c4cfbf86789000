"""`smallplates.supervision.scratch`: folders of services that have ended are removed, and no others."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from smallplates.supervision import scratch

SERVICE = """
import subprocess, sys
from pathlib import Path
from smallplates.supervision import scratch
with scratch.folder() as folder:
    (folder / "weights").write_text("")
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=sys.stdin, close_fds=False)
    print(folder, worker.pid, flush=True)
    worker.wait()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, of this process and of those that it starts."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_folder_is_removed_at_the_end(temporary: Path) -> None:
    with scratch.folder() as folder:
        assert folder
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not list(temporary.iterdir())


def test_the_folder_of_a_killed_service_is_removed_though_its_workers_live(temporary: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE], stdin=pipe, stdout=pipe, text=True
    ) as service:
        assert service.stdout
        place, worker = service.stdout.readline().split()
        with scratch.folder() as first, scratch.folder() as second:
            assert (Path(place) / "weights").exists()
            assert first
            assert second
            service.kill()
            service.wait()
            os.kill(int(worker), 0)  # it is still there
            with scratch.folder() as third:
                assert third
                assert {*temporary.iterdir()} == {first, second, third}
        os.kill(int(worker), signal.SIGKILL)


def test_folders_of_others_are_left_alone(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = temporary / "other"
    another_prefix = temporary / "serving-metrics-abc"
    for place in (other, another_prefix):
        place.mkdir()
        (place / scratch.OWNER).touch()
    link = temporary / f"{scratch.PREFIX}link"
    link.symlink_to(other)
    without_lock = temporary / f"{scratch.PREFIX}without"
    without_lock.mkdir()
    scratch.sweep(temporary)
    assert {*temporary.iterdir()} == {other, another_prefix, link, without_lock}
    assert (other / scratch.OWNER).exists()
    another_users = temporary / f"{scratch.PREFIX}abc"
    another_users.mkdir()
    (another_users / scratch.OWNER).touch()
    monkeypatch.setattr(os, "getuid", lambda: another_users.stat().st_uid + 1)
    scratch.sweep(temporary)
    assert another_users.exists()


def test_without_a_place_to_write_there_is_no_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with scratch.folder() as folder:
        assert folder is None
