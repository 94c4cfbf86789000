"""`smallplates.system.signals`: what a process does with signals, whatever started it."""

import sys

from tests import servers

STARTED = """
import os, signal, subprocess
from smallplates.system.signals import end_on_signals

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
end_on_signals()
print(subprocess.call(["sh", "-c", "exit 3"]), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_signals_that_another_program_has_ignored_or_blocked() -> None:
    process = servers.run(sys.executable, "-c", STARTED)
    assert (process.returncode, process.stdout, process.stderr) == (0, "3\n", "")
