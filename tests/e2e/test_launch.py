"""`python -m serving.launch`, which `make run` starts: API and page together, both ended together."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import psutil
import pytest
import requests

from tests import pictures, servers

pytestmark = pytest.mark.slow


@contextmanager
def launched(
    on_hangup: signal.Handlers = signal.SIG_DFL, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The launcher when both answer, and the ports of API and page.

    `on_hangup` is what it inherits for SIGHUP, whatever these tests were started with.
    """
    port, ui_port = str(servers.free_port()), str(servers.free_port())
    more = {"PORT": port, "UI_PORT": ui_port, "SERVING_LOG_LEVEL": "warning", **environment}
    with subprocess.Popen(
        [sys.executable, "-m", "serving.launch"],
        cwd=servers.ROOT,
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGHUP, on_hangup),
    ) as launcher:
        try:
            assert launcher.stdout
            lines = [launcher.stdout.readline() for _ in range(4)]
            assert f"http://127.0.0.1:{ui_port}" in "".join(lines)
            assert f"http://127.0.0.1:{port}/docs" in "".join(lines)
            yield launcher, port, ui_port
        finally:
            launcher.terminate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_both_start_and_both_stop(number: signal.Signals) -> None:
    with launched() as (launcher, port, ui_port):
        answer = requests.post(f"http://127.0.0.1:{port}/predict", data=pictures.jpeg(), timeout=30)
        assert answer.status_code == 200
        assert requests.get(f"http://127.0.0.1:{ui_port}/test", timeout=30).status_code == 200
        children = psutil.Process(launcher.pid).children(recursive=True)
        assert len(children) >= 2
        launcher.send_signal(number)
        assert launcher.wait(30) == 0
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive


def test_nohup_keeps_both() -> None:
    with launched(on_hangup=signal.SIG_IGN) as (launcher, port, _):
        launcher.send_signal(signal.SIGHUP)
        assert requests.get(f"http://127.0.0.1:{port}/health/ready", timeout=30).status_code == 200
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(30) == 0


def test_a_launcher_that_is_killed_leaves_nothing_behind() -> None:
    with launched() as (launcher, _, _):
        children = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive


def test_the_death_of_one_ends_the_other() -> None:
    with launched() as (launcher, _, _):
        children = psutil.Process(launcher.pid).children(recursive=True)
        page_of(children).kill()
        assert launcher.wait(30) == 1
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive


def test_a_second_signal_kills_what_does_not_end() -> None:
    with launched() as (launcher, _, _):
        children = psutil.Process(launcher.pid).children(recursive=True)
        page = page_of(children)
        page.suspend()
        launcher.terminate()
        _, alive = psutil.wait_procs([child for child in children if child != page], timeout=20)
        assert not alive
        assert page.is_running()
        launcher.terminate()
        assert launcher.wait(20) == 0
        assert not page.is_running()


def page_of(processes: list[psutil.Process]) -> psutil.Process:
    return next(process for process in processes if "flask_app" in process.cmdline())


def test_one_that_cannot_start_ends_both() -> None:
    environment = {
        **os.environ,
        "PORT": str(servers.free_port()),
        "UI_PORT": str(servers.free_port()),
        "SERVING_MODEL_DIR": "/nonexistent",
    }
    result = subprocess.run(
        [sys.executable, "-m", "serving.launch"],
        cwd=servers.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 1
    assert "no model in /nonexistent" in result.stderr
