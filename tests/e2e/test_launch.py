"""`smallplates serve`, which `make run` starts: API and page together, both ended together."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
import requests

from tests import servers
from tests.conftest import NEEDS_TORCH
from tests.fake.backend import command

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-c", "from smallplates.__main__ import main; main()", "serve"]
"""As the installed script does it: the current folder is not on the path."""

FAKE = "--backend=tests.fake"

SHADOW = "raise SystemExit('this module of the current folder must not be imported')"
TASK = """
from pydantic import BaseModel

class Count:
    class Request(BaseModel):
        text: str
    class Answer(BaseModel):
        length: int
    example = {"text": "four"}
    def load(self, folder, device): pass
    def infer(self, requests): return [{"length": len(request.text)} for request in requests]
"""


@contextmanager
def launched(
    *arguments: str,
    on_hangup: signal.Handlers = signal.SIG_DFL,
    cwd: Path = servers.ROOT,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The launcher when all answers, and the URLs of page and API; the first is empty without a page.

    `on_hangup` is what it inherits for SIGHUP, whatever these tests were started with.
    """
    with subprocess.Popen(
        [*COMMAND, "--port=0", "--ui-port=0", "--log-level=warning", *arguments],
        cwd=cwd,
        env={
            **os.environ,
            **(environment or {}),
            "PYTHONPATH": str(servers.ROOT),
            "PYTHONSAFEPATH": "1",
        },
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGHUP, on_hangup),
    ) as launcher:
        try:
            assert launcher.stdout
            urls = {"page": ""}
            for line in launcher.stdout:
                match line.split():
                    case ["page" | "API" as name, url]:
                        urls[name] = url.removesuffix("/docs")
                if "API" in urls:
                    break
            yield launcher, urls["page"], urls["API"]
        finally:
            launcher.terminate()


@pytest.mark.parametrize(
    ("number", "backend", "settings"),
    [
        (signal.SIGINT, "onnx", {}),
        pytest.param(signal.SIGTERM, "pt", servers.UNMEASURED, marks=NEEDS_TORCH),
        (signal.SIGHUP, "onnx", servers.UNMEASURED),
    ],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_both_start_and_both_stop(
    number: signal.Signals, backend: str, settings: dict[str, str]
) -> None:
    with launched(f"--backend={backend}", environment=settings) as (launcher, page, api):
        answer = requests.post(f"{api}/predict", data=command(), timeout=60)
        assert answer.status_code == 200
        model = requests.get(f"{api}/model", timeout=60).json()
        assert model["precision"] in ("fp32", "bf16", "int8")  # as this machine measured
        assert model["precision_reason"]
        assert model["instances"] >= 1
        assert requests.get(f"{page}/test", timeout=60).status_code == 200
        children = psutil.Process(launcher.pid).children(recursive=True)
        assert len(children) >= 2
        launcher.send_signal(number)
        assert launcher.wait(60) == 0
        assert not psutil.wait_procs(children, timeout=60)[1]


def test_nohup_keeps_both() -> None:
    with launched(FAKE, on_hangup=signal.SIG_IGN) as (launcher, _, api):
        launcher.send_signal(signal.SIGHUP)
        assert requests.get(f"{api}/health/ready", timeout=60).status_code == 200
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(60) == 0


def test_a_launcher_that_is_killed_leaves_nothing_behind() -> None:
    with launched(FAKE) as (launcher, _, _):
        children = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
        assert not psutil.wait_procs(children, timeout=60)[1]


def test_the_death_of_one_ends_the_other() -> None:
    with launched(FAKE) as (launcher, _, _):
        children = psutil.Process(launcher.pid).children(recursive=True)
        page_of(children).kill()
        assert launcher.wait(60) == 1
        assert not psutil.wait_procs(children, timeout=60)[1]


def test_a_second_sigint_kills_what_does_not_end() -> None:
    with launched(FAKE) as (launcher, _, _):
        children = psutil.Process(launcher.pid).children(recursive=True)
        page = page_of(children)
        page.suspend()
        launcher.terminate()
        assert not psutil.wait_procs([child for child in children if child != page], timeout=60)[1]
        launcher.terminate()
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(60) == 0
        assert not page.is_running()


@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_accepted_requests_are_answered_before_it_ends(
    fake_settings: dict[str, str], gate: Path, senders: ThreadPoolExecutor, web_processes: str
) -> None:
    arguments = [FAKE, f"--web-processes={web_processes}"]
    with launched(*arguments, environment=fake_settings) as (launcher, _, api):
        page = page_of(children := psutil.Process(launcher.pid).children(recursive=True))
        answer = senders.submit(requests.post, f"{api}/predict", data=command(held=True), timeout=60)
        servers.wait_for(lambda: servers.metric(api, "serving_free_slots") == 255)
        for process in (*children, psutil.Process(launcher.pid)):  # as systemd does
            process.terminate()
        servers.wait_for(lambda: page.status() == psutil.STATUS_ZOMBIE)
        assert launcher.poll() is None
        gate.touch()
        assert answer.result().status_code == 200
        assert launcher.wait(60) == 0


def page_of(processes: list[psutil.Process]) -> psutil.Process:
    return next(process for process in processes if "flask_app" in process.cmdline())


def test_the_current_folder_has_tasks_and_shadows_nothing(tmp_path: Path) -> None:
    """In the service, its web processes, its workers and the page."""
    for package in ("smallplates", "fastapi_onnx", "flask_app", "pydantic"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(SHADOW)
    (tmp_path / "counting.py").write_text(TASK)
    (tmp_path / "model").mkdir()
    described = {"name": "count", "version": "1", "files": {}, "task": "counting:Count"}
    (tmp_path / "model" / "model.json").write_text(json.dumps(described))
    with launched(
        "words=model",
        "food=" + str(servers.ROOT / "models" / "food11"),
        "--web-processes=2",
        cwd=tmp_path,
    ) as (launcher, page, api):
        answer = requests.post(f"{api}/predict/words", json={"text": "soup"}, timeout=60)
        assert answer.json() == {"length": 4}
        assert requests.get(f"{page}/healthz", timeout=60).status_code == 200
        launcher.terminate()
        assert launcher.wait(60) == 0
