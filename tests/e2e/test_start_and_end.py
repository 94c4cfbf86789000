"""A service that cannot start says why in a sentence; one that is told to end while it starts, ends."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from smallplates.supervision.cluster import METRICS
from tests import servers
from tests.e2e.services import check_one_sentence, ended, fake_service, predict, switch
from tests.fake.backend import command
from tests.servers import wait_for

pytestmark = pytest.mark.slow


def test_wrong_settings_are_named() -> None:
    process = ended({"SERVING_QUEUE_SIZE": "0", "SERVING_INSTANCES": "x", "SERVING_API_KEY": ""})
    check_one_sentence(process, "SERVING_QUEUE_SIZE: ", "SERVING_INSTANCES: ", "SERVING_API_KEY: ")
    assert "-int" not in process.stderr


@pytest.mark.parametrize("web_processes", ["1", "2"])
@pytest.mark.parametrize("variable", ["SERVING_PORT", "SERVING_TCP_PORT", "SERVING_GRPC_PORT"])
def test_a_port_that_is_taken_is_named(
    fake_settings: dict[str, str], variable: str, web_processes: str
) -> None:
    """Another service has it, whose web processes share it."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as other:
        port = str(other.getsockname()[1])
        more = {variable: port, "SERVING_WEB_PROCESSES": web_processes}
        process = ended({**fake_settings, **more})
    check_one_sentence(process, "cannot listen", f"{variable}={port}")
    assert "loading" not in process.stderr


@pytest.mark.parametrize(("descriptors", "web_processes"), [(20, "1"), (24, "2"), (30, "1"), (30, "2")])
def test_too_few_descriptors_are_named(
    fake_settings: dict[str, str], descriptors: int, web_processes: str
) -> None:
    settings = {**fake_settings, "SERVING_PORT": "0", "SERVING_INSTANCES": "8"}
    line = f"ulimit -n {descriptors}; exec {sys.executable} -m smallplates.service tests.fake"
    process = servers.run("sh", "-c", line, env={**settings, "SERVING_WEB_PROCESSES": web_processes})
    check_one_sentence(process, "Too many open files")


@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_what_a_worker_cannot_load_is_named(
    fake_settings: dict[str, str], tmp_path: Path, web_processes: str
) -> None:
    (tmp_path / "broken").touch()
    settings = {**fake_settings, "SERVING_WEB_PROCESSES": web_processes}
    check_one_sentence(ended(settings), "commanded not to load")


@pytest.mark.parametrize(
    ("body", "reason"),
    [("raise RuntimeError('one\\ntwo')", "RuntimeError: one"), ("raise SystemExit(3)", "SystemExit: 3")],
)
def test_what_a_class_raises_while_it_loads_is_one_sentence(
    tmp_path: Path, body: str, reason: str
) -> None:
    (tmp_path / "model").mkdir()
    described = {"name": "own", "version": "1", "files": {}, "task": "failing:Failing"}
    (tmp_path / "model" / "model.json").write_text(json.dumps(described))
    (tmp_path / "failing.py").write_text(
        "class Failing:\n    Request = Answer = int\n    def infer(self, items): return items\n"
        f"    def load(self, folder, device): {body}\n"
    )
    settings = {"SERVING_MODEL_DIR": str(tmp_path / "model"), "PYTHONPATH": str(tmp_path)}
    process = ended(settings, "fastapi_onnx")
    assert process.returncode == 1
    last = process.stderr.splitlines()[-1]
    assert last == f"the service cannot start: the model cannot be loaded: {reason}"


@contextmanager
def begun(*arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m ARGUMENTS` until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=servers.ROOT,
        env={**os.environ, **env, "SERVING_PORT": "0", "UI_PORT": "0"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def starting(settings: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A service whose workers load until it ends."""
    (tmp_path / "loading").touch()
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    with begun("smallplates.service", "tests.fake", **settings, TMPDIR=str(scratch)) as process:
        wait_for((tmp_path / "loading.held").exists)
        yield process


@pytest.mark.parametrize("web_processes", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_loads_ends_it(
    fake_settings: dict[str, str], tmp_path: Path, web_processes: str, number: signal.Signals
) -> None:
    settings = {**fake_settings, "SERVING_WEB_PROCESSES": web_processes}
    with starting(settings, tmp_path) as process:
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == 0
        assert not psutil.wait_procs(children, timeout=60)[1]
        assert not list((tmp_path / "temporary").iterdir())


HOLD = """
import pathlib, os, signal, sys

class Hold:
    def find_spec(self, name, *_):
        program, module, marks = os.environ["HOLD"].split()
        if name == module and program in sys.orig_argv:
            pathlib.Path(marks, str(os.getpid())).touch()
            while True:
                signal.pause()

sys.meta_path.insert(0, Hold())
"""


@contextmanager
def importing(
    settings: dict[str, str], tmp_path: Path, waiting: str, module: str, arguments: list[str]
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`python -m ARGUMENTS`, and a folder of marks: the processes that wait while `waiting` imports."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(HOLD)
    (marks := tmp_path / "marks").mkdir()
    more = {"HOLD": f"{waiting} {module} {marks}", "PYTHONPATH": str(tmp_path / "path")}
    with begun(*arguments, **settings, **more) as process:
        yield process, marks


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("argparse", ["smallplates.service", "tests.fake"]),  # what it imports first
        ("pydantic", ["smallplates.service", "tests.fake"]),
        ("uvicorn", ["smallplates.service", "tests.fake"]),
        ("logging", ["flask_app"]),
        ("waitress", ["flask_app"]),
        ("subprocess", ["smallplates", "serve"]),
        ("ctypes", ["smallplates", "serve"]),
    ],
)
def test_a_signal_while_it_imports_ends_it(
    fake_settings: dict[str, str],
    tmp_path: Path,
    module: str,
    arguments: list[str],
    number: signal.Signals,
) -> None:
    with importing(fake_settings, tmp_path, arguments[0], module, arguments) as (process, marks):
        wait_for(lambda: any(marks.iterdir()))
        process.send_signal(number)
        assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("waiting", "then"),
    [
        ("smallplates.web.process", psutil.STATUS_ZOMBIE),
        ("smallplates.worker.process", psutil.STATUS_SLEEPING),  # the supervisor ends it
    ],
)
def test_ctrl_c_while_its_children_import_ends_it(
    fake_settings: dict[str, str], tmp_path: Path, waiting: str, then: str
) -> None:
    """A terminal sends the signal to all of them."""
    settings = {**fake_settings, "SERVING_WEB_PROCESSES": "2"}
    arguments = ["smallplates.service", "tests.fake"]
    with importing(settings, tmp_path, waiting, "pydantic", arguments) as (process, marks):
        wait_for(lambda: len(list(marks.iterdir())) == 2)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGSTOP)  # so that it ends none of them before they have heard it
        importing_now = [psutil.Process(int(mark.name)) for mark in marks.iterdir()]
        for child in importing_now:
            child.send_signal(signal.SIGINT)
        wait_for(lambda: {child.status() for child in importing_now} == {then})
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == 0
        assert not psutil.wait_procs(children, timeout=60)[1]


@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_a_signal_while_a_version_loads_ends_it(
    fake_settings: dict[str, str], tmp_path: Path, web_processes: str
) -> None:
    with (
        fake_service(fake_settings, admin_key="chief", web_processes=web_processes) as (url, server),
        ThreadPoolExecutor(1) as executor,
    ):
        (tmp_path / "loading").touch()
        switching = executor.submit(switch, url, "2")
        wait_for((tmp_path / "loading.held").exists)
        assert predict(url, command(class_index=3)).json()["prediction"] == "3"
        children = server.children(recursive=True)
        server.terminate()
        answer = switching.result()
        assert (answer.status_code, answer.json()["error"]) == (503, "the service is shutting down")
        assert not psutil.wait_procs([server, *children], timeout=60)[1]


def test_the_next_start_clears_what_a_killed_one_left(fake_settings: dict[str, str]) -> None:
    with fake_service(fake_settings, web_processes="2") as (_, server):
        (left,) = {Path(file.path).parent for file in server.open_files() if METRICS in file.path}
        server.kill()
        server.wait()
    with fake_service(fake_settings, web_processes="2"):  # or any other service on this machine
        assert not left.exists()


def check_it_answers_and_ends(process: subprocess.Popen[str], port: int) -> None:
    with process:
        try:
            url = f"http://127.0.0.1:{port}"
            servers.wait_until_answers(f"{url}/health/ready", process)
            assert predict(url, command(class_index=9)).json()["prediction"] == "9"
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("program", "log_format"),
    [
        (["smallplates.service", "tests.fake"], "json"),
        (["smallplates", "serve", "--backend=tests.fake", "--no-page"], "console"),
    ],
    ids=["service", "serve"],
)
def test_nobody_reads_what_it_writes(
    fake_settings: dict[str, str], program: list[str], log_format: str
) -> None:
    port = servers.free_port()
    reader, writer = os.pipe()
    os.close(reader)
    settings = {**fake_settings, "SERVING_LOG_LEVEL": "info", "SERVING_LOG_FORMAT": log_format}
    process = subprocess.Popen(
        [sys.executable, "-m", *program, "--port", str(port)],
        cwd=servers.ROOT,
        env={**os.environ, **settings},
        stdout=writer,
        stderr=writer,
        text=True,
    )
    os.close(writer)
    check_it_answers_and_ends(process, port)


def test_closed_standard_streams_are_no_obstacle(fake_settings: dict[str, str]) -> None:
    port = servers.free_port()
    line = f"exec {sys.executable} -m smallplates.service tests.fake --port {port} <&- >&- 2>&-"
    settings = {**fake_settings, "SERVING_LOG_LEVEL": "info"}
    process = subprocess.Popen(
        ["sh", "-c", line], cwd=servers.ROOT, env={**os.environ, **settings}, text=True
    )
    check_it_answers_and_ends(process, port)
