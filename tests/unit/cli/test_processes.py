"""The signals that end the launcher, whenever they arrive, and the servers that it waits for."""

import signal
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import pytest

from smallplates.cli import processes
from smallplates.cli.processes import Stop
from smallplates.errors import ConfigurationError
from tests import servers

INTERRUPTED = """
import signal, sys
from smallplates.cli.processes import Stop

left = 40

def interrupt(*_):
    global left
    if left:
        left -= 1
        signal.raise_signal(signal.SIGTERM)

stop = Stop([])
sys.setprofile(interrupt)
while not stop.wait(1):
    pass
sys.setprofile(None)
print(left < 35)
"""


def test_signals_may_interrupt_the_wait_and_each_other() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], cwd=servers.ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.communicate(timeout=60)[0] == "True\n"
        finally:
            process.kill()
        assert process.returncode == 0


def test_a_signal_reaches_the_processes_at_once_and_a_second_ctrl_c_kills_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while the launcher waits for an answer of theirs."""
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    Stop([process := Mock()])
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        handlers[number](number, None)
    sent = [call.args[0] for call in process.send_signal.call_args_list]
    assert sent == [signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"SSH-2.0-any\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\n\r\n[1]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n\xff",
    ],
)
def test_what_another_program_answers_is_nothing(reply: bytes) -> None:
    with servers.replying(reply) as url:
        assert processes.answer(f"{url}/health/ready") == {}


def test_a_process_that_the_system_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=BlockingIOError(11, "not now")))
    with pytest.raises(ConfigurationError, match="flask_app cannot be started: "):
        processes.start("flask_app")
