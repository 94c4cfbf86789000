"""A service that is told to end answers what it has accepted, and leaves no process behind."""

import http.client
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import requests

from tests.e2e.services import WEB, WORKER, fake_service, hold, predict, programs
from tests.fake.backend import command
from tests.servers import wait_for


@pytest.mark.slow
def test_a_second_sigterm_changes_nothing_and_a_sigint_ends_at_once(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor
) -> None:
    with fake_service(fake_settings) as (url, server):
        workers = programs(server, WORKER)
        held = hold(senders, url, tmp_path / "gate")
        for _ in range(2):
            server.terminate()
            wait_for(lambda: requests.get(f"{url}/health/ready", timeout=60).status_code == 503)
        assert not held.done()
        server.send_signal(signal.SIGINT)
        assert not psutil.wait_procs([server, *workers], timeout=60)[1]
        assert isinstance(held.exception(), requests.ConnectionError)


@pytest.mark.parametrize(
    ("number", "web_processes"),
    [
        (signal.SIGTERM, "1"),
        pytest.param(signal.SIGTERM, "2", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, "1", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, "2", marks=pytest.mark.slow),
    ],
)
def test_a_signal_under_load_lets_it_answer_all_and_exit_with_0(
    fake_settings: dict[str, str], number: signal.Signals, web_processes: str
) -> None:
    """A terminal that is closed sends SIGHUP to all processes of the group."""
    settings = {**fake_settings, "FAKE_MS": "20"}
    with fake_service(settings, web_processes=web_processes) as (url, server):
        statuses: list[int] = []
        enough = threading.Event()

        def ask() -> None:
            try:
                while True:
                    statuses.append(predict(url, command()).status_code)
                    if len(statuses) > 30:
                        enough.set()
            except requests.ConnectionError:
                return  # the end: nobody listens any more

        with ThreadPoolExecutor(8) as executor:
            asking = [executor.submit(ask) for _ in range(8)]
            assert enough.wait(60)
            for process in [server, *(programs(server, WEB) if number == signal.SIGHUP else ())]:
                process.send_signal(number)
            for future in asking:
                future.result()
        assert server.wait(60) == 0
        assert set(statuses) <= {200, 503}
        assert len(statuses) > 30


@pytest.mark.slow
@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_a_delayed_end_is_announced_by_readiness_and_by_taking_leave(
    fake_settings: dict[str, str], web_processes: str
) -> None:
    more = {"shutdown_delay_s": "3600", "web_processes": web_processes, "instances": "1"}

    def leaves(connection: http.client.HTTPConnection) -> bool:
        connection.request("GET", "/health/ready")
        answer = connection.getresponse()
        answer.read()
        assert (answer.status == 503) == (answer.headers["Connection"] == "close")
        return answer.status == 503

    with fake_service(fake_settings, **more) as (url, server), ExitStack() as held:
        address = urlsplit(url).netloc
        connections = [http.client.HTTPConnection(address, timeout=60) for _ in range(4)]
        for connection in connections:
            held.callback(connection.close)
            assert not leaves(connection)
        server.terminate()
        for connection in connections:  # of all web processes
            wait_for(lambda waiting=connection: leaves(waiting))  # type: ignore[misc]
        answers = [predict(url, command(class_index=7)) for _ in range(4)]
        assert {answer.json()["prediction"] for answer in answers} == {"7"}
        assert {answer.headers["Connection"] for answer in answers} == {"close"}
        server.terminate()  # from systemd and from a launcher
        server.send_signal(signal.SIGINT)  # whoever does not want to wait
        assert server.wait(60) == 128 + signal.SIGINT


@pytest.mark.slow
@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_after_the_delay_the_service_ends(fake_settings: dict[str, str], web_processes: str) -> None:
    more = {"shutdown_delay_s": "0.2", "web_processes": web_processes, "instances": "1"}
    with fake_service(fake_settings, **more) as (_, server):
        server.terminate()
        assert server.wait(60) == 0


@pytest.mark.parametrize("web_processes", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_sigkill_leaves_no_process_behind(fake_settings: dict[str, str], web_processes: str) -> None:
    with fake_service(fake_settings, web_processes=web_processes) as (_, server):
        children = server.children(recursive=True)
        assert len(children) >= 2
        server.kill()
        assert not psutil.wait_procs(children, timeout=60)[1]


@pytest.mark.slow
@pytest.mark.parametrize("does", ["fork", "run"])
def test_sigkill_ends_what_a_python_class_has_started(
    fake_settings: dict[str, str], tmp_path: Path, does: str
) -> None:
    described = {"name": "own", "version": "1", "task": "tests.fake.python_task:Obedient"}
    (model := tmp_path / "own").mkdir()
    (model / "model.json").write_text(json.dumps(described))
    settings = fake_settings | {"SERVING_MODEL_DIR": str(model), "FAKE_SIZES": str(tmp_path / "sizes")}
    with fake_service(settings) as (url, server):
        request = {"number": 1, "does": does}
        assert requests.post(f"{url}/predict", json=request, timeout=60).json()["number"] == 1
        child = psutil.Process(int((tmp_path / "gate.child").read_text()))
        try:
            server.kill()
            wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
        finally:
            with suppress(psutil.NoSuchProcess):
                child.kill()
