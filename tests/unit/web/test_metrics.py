"""The counters of `/metrics`, which never fall, and the files in which all web processes read them."""

import errno
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

from smallplates.engine.memory import Memory
from smallplates.web import metrics
from smallplates.web.metrics import FILE_BYTES, CountsFile, Metrics
from tests.unit.engine.conftest import memory

__all__ = ["memory"]

NAMES = ("counter", "requests", "requests_total", ["path"])


class Disk:
    """A file system whose room the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.room, self.folder = 0, folder
        self._allocate = os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", self.allocate)
        self.values = values.MultiProcessValue()  # type: ignore[no-untyped-call]
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))

    def allocate(self, fd: int, offset: int, size: int) -> None:
        if size > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._allocate(fd, offset, size)

    def stored(self) -> list[float]:
        """Returns the values in all files, as /metrics reads them."""
        files = self.folder.glob("*.db")
        read = map(MmapedDict.read_all_values_from_file, files)
        return [value for each in read for _, value, _, _ in each]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(monkeypatch, tmp_path)
    yield disk
    disk.values.close_all_files()


def test_without_room_counting_goes_on_in_memory(disk: Disk) -> None:
    """A file that is mapped without room would end the process at the first write."""
    value = disk.values(*NAMES, ["/predict"], "help")
    value.inc(1)
    assert disk.stored() == []
    assert value.get() == 1
    disk.room = FILE_BYTES
    value.inc(2)
    assert disk.stored() == [3]


def test_a_full_file_that_cannot_grow_keeps_its_series(disk: Disk) -> None:
    disk.room = FILE_BYTES
    made = [disk.values(*NAMES, [f"/{number}"], "help" * 50) for number in range(FILE_BYTES // 200)]
    for value in made:
        value.inc(1)
    assert 0 < disk.stored().count(1) < len(made)
    assert [path.stat().st_size for path in disk.folder.iterdir()] == [FILE_BYTES]
    disk.room *= 2
    for value in made:
        value.inc(1)
    assert disk.stored() == [2] * len(made)


def test_all_room_of_a_file_is_reserved(tmp_path: Path) -> None:
    counts = CountsFile(str(tmp_path / "counts.db"))
    counts.write_value("name", 5.0, 0.0)
    counts.close()  # type: ignore[no-untyped-call]
    stored = (tmp_path / "counts.db").stat()
    assert stored.st_blocks * 512 >= stored.st_size == FILE_BYTES


def test_the_counters_of_a_model_stay_while_it_is_unloaded(memory: Memory) -> None:
    made = Metrics()
    made.engines.follow("one", memory, web_processes=1)
    memory.restarts[0], memory.out_of_memory[0] = 3, 2
    made.engines.withdraw("one", failed=False)
    values = dict(line.rsplit(" ", 1) for line in made.text().decode().splitlines())
    assert float(values['serving_worker_restarts_total{model="one"}']) == 3
    assert float(values['serving_out_of_memory_total{model="one"}']) == 2
    assert float(values["serving_web_cpu_seconds_total"]) > 0
    memory.continue_counters(memory.counters)  # as of the engine before it
    made.engines.follow("one", memory, web_processes=1)
    assert b'serving_worker_restarts_total{model="one"} 6.0' in made.text()


def test_the_time_of_web_processes_never_falls(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    used = {os.getpid(): 5.0}
    monkeypatch.setattr(metrics, "_cpu_seconds", lambda process: used.get(process, 0.0))
    seconds = partial(metrics.web_cpu_seconds, memory.counts)
    assert seconds() == 5
    used.clear()
    assert seconds() == 5  # it has just ended
    memory.counts.web_cpu_s[0] += 5
    used[os.getpid()] = 1.0
    assert seconds() == 6
