"""Which of several idle workers a record wakes, on processes that wait as workers do."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from smallplates.supervision.worker_process import managed_pipe
from smallplates.worker import queue
from tests.servers import wait_for

WAITING = """
import os, select, sys
waits, records, answers = map(int, sys.argv[1:4])
epoll = select.epoll.fromfd(waits)
print(flush=True)
while epoll.poll():
    try:
        os.write(answers, sys.argv[4].encode() * bool(os.read(records, 8)))
    except BlockingIOError:
        os.write(answers, b"-")
"""


class Workers:
    """Three places on one work pipe, each with an epoll; `start` begins a process in a place."""

    def __init__(self, held: ExitStack) -> None:
        self._held = held
        self._records, self._work = managed_pipe(held, 8)
        os.set_blocking(self._records, False)
        self._answers, self._answering = managed_pipe(held, 8)
        self.running: dict[int, psutil.Popen] = {}
        self._epolls = [queue.exclusive_epoll([self._records]) for _ in range(3)]

    def start(self, place: int) -> None:
        epoll = self._epolls[place]
        assert epoll
        fds = epoll.fileno(), self._records, self._answering
        arguments = [sys.executable, "-c", WAITING, *map(str, fds), str(place)]
        process = psutil.Popen(arguments, pass_fds=fds, stdout=subprocess.PIPE)
        self._held.enter_context(process.stdout)
        process.stdout.readline()
        self.running[place] = process
        self._wait_until_idle()

    def kill(self, place: int) -> None:
        process = self.running.pop(place)
        process.kill()
        process.wait()

    def woken(self) -> str:
        """Sends one record; returns the places of those that woke up, `-` for one that found nothing."""
        os.write(self._work, bytes(8))
        self._wait_until_idle()  # a process that has been woken does not count as asleep
        return os.read(self._answers, 8).decode()

    def _wait_until_idle(self) -> None:
        asleep = psutil.STATUS_SLEEPING
        wait_for(lambda: all(process.status() == asleep for process in self.running.values()))


@pytest.fixture
def workers() -> Iterator[Workers]:
    if queue.exclusive_epoll([]) is None:
        pytest.skip("here every record wakes all idle workers")
    with ExitStack() as held:
        made = Workers(held)
        yield made
        for place in list(made.running):
            made.kill(place)


def test_a_record_wakes_the_first_idle_worker_and_no_other(workers: Workers) -> None:
    for place in (2, 0, 1):
        workers.start(place)
    assert [workers.woken() for _ in range(3)] == ["0", "0", "0"]
    workers.kill(0)
    assert workers.woken() == "1"
    workers.start(0)  # a replaced worker has its predecessor's place
    assert workers.woken() == "0"


@pytest.mark.parametrize("release", ["5.4.0-216-generic", "4.4.0", "4.19-rc3", "unknown"])
def test_an_older_linux_wakes_all_workers(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    assert queue.exclusive_epoll([]) is None
