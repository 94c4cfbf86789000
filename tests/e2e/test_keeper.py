"""`benchmarks.keeper` and `running.program`: whatever a benchmark starts, nothing of it is left."""

import signal
import subprocess
import sys

import psutil
import pytest

from benchmarks import running
from tests import servers
from tests.servers import wait_for

pytestmark = pytest.mark.slow

ORPHAN = "setsid sh -c '{trap}echo $$; : > $TMPDIR/up; sleep 600; sleep 600' & "
"""A daemon: its own session, and its parent ends."""

LAUNCHER = """
import sys
from benchmarks.running import program
with program(["sh", "-c", sys.argv[1]], {}) as started:
    started.keeper.wait()
"""


def ended(pid: int) -> bool:
    """Gone, or dead and not yet buried by whoever adopted it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("trap", ["", 'trap "" TERM; '])
@pytest.mark.parametrize("rest", ["exec sleep 600", "until [ -e $TMPDIR/up ]; do sleep 0.01; done"])
def test_a_daemon_is_ended_with_its_program(trap: str, rest: str) -> None:
    script = ORPHAN.format(trap=trap) + rest
    with running.program(["sh", "-c", script], {}) as started:
        wait_for(lambda: started.log.read_text().endswith("\n"))
        daemon = int(started.log.read_text())
    assert ended(daemon)
    assert started.keeper.returncode == 0
    assert not started.log.exists()


def test_all_end_when_the_benchmark_is_killed() -> None:
    script = ORPHAN.format(trap="") + "echo $$; exec sleep 600"
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, script], cwd=servers.ROOT)
    try:
        benchmark = psutil.Process(launcher.pid)
        wait_for(lambda: len(sleeping(benchmark)) == 2)
        descendants = benchmark.children(recursive=True)
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    wait_for(lambda: all(ended(process.pid) for process in descendants))


def sleeping(process: psutil.Process) -> list[psutil.Process]:
    """The `sleep` commands below it."""
    return [child for child in process.children(recursive=True) if child.name() == "sleep"]
