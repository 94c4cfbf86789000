"""Versions of a model are switched while the service runs."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from smallplates.client.tcp import TcpClient
from smallplates.supervision.worker_process import STARTS_IF_KILLED
from tests import servers
from tests.e2e.services import WORKER, fake_service, predict, programs, switch
from tests.fake.backend import command
from tests.fake.model import CLASSES, write_model
from tests.http_load import send_all
from tests.servers import wait_for

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_versions_are_switched_without_a_failed_request(
    versions: dict[str, str], web_processes: str
) -> None:
    settings = {**versions, "FAKE_MS": "2"}
    keys = {"api_key": "guest", "admin_key": "chief", "web_processes": web_processes}
    with fake_service(settings, **keys) as (url, server):
        guest = {"Authorization": "Bearer guest"}
        assert switch(url, "2", "guest").status_code == 401
        assert switch(url, "../2").status_code == 400
        stop = threading.Event()

        def pictures() -> Iterator[tuple[int, bytes]]:
            tag = 0
            while not stop.is_set():
                yield tag, command(class_index=tag % CLASSES)
                tag += 1

        def switch_to_and_fro() -> None:
            try:
                for version in ("2", "1", "2"):
                    assert switch(url, version).status_code == 200
                    assert len(programs(server, WORKER)) == 2  # the one before is gone
                    assert requests.get(f"{url}/model", timeout=60).json()["version"] == version
            finally:
                stop.set()

        with ThreadPoolExecutor(1) as executor:
            switching = executor.submit(switch_to_and_fro)
            answers = send_all(url, pictures(), senders=6, headers=guest)
            switching.result()
        assert {answer.status for answer in answers} == {200}
        names = {f"{word}-{a.tag % CLASSES}" for a in answers for word in ("one", "two")}
        assert all(answer.label in names for answer in answers)
        assert {str(answer.label).split("-")[0] for answer in answers} == {"one", "two"}
        wait_for(lambda: len(programs(server, WORKER)) == 2)


def test_a_request_that_has_found_a_version_is_answered_by_it(versions: dict[str, str]) -> None:
    picture = command(class_index=3)
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(picture)}\r\n"
    with (
        fake_service(versions, instances="1", admin_key="chief") as (url, _),
        socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=60) as client,
        ThreadPoolExecutor(1) as executor,
    ):
        client.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 100")  # it has found the model, and waits
        switching = executor.submit(switch, url, "2")
        wait_for(lambda: requests.get(f"{url}/model", timeout=60).json()["version"] == "2")
        assert predict(url, picture).json()["prediction"] == "two-3"
        assert not switching.done()
        client.sendall(picture)
        assert b'"prediction":"one-3"' in client.recv(4096)
        assert switching.result().status_code == 200


def test_a_version_may_have_more_labels(fake_settings: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "fake"
    write_model(folder, "1", classes=3)
    write_model(folder / "2", "2", classes=5)
    port = servers.free_port()
    settings = {**fake_settings, "SERVING_MODEL_DIR": str(folder)}
    with (
        fake_service(settings, instances="1", admin_key="chief", tcp_port=str(port)) as (url, _),
        TcpClient("127.0.0.1", port) as client,
    ):
        path, photo = f"{url}/predict?top_k=5", command(class_index=4)
        assert requests.post(path, data=photo, timeout=60).status_code == 422
        assert switch(url, "2").status_code == 200
        assert len(requests.post(path, data=photo, timeout=60).json()["top"]) == 5
        assert len(client.predict(photo, top_k=5).content["top"]) == 5


@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_a_version_whose_workers_do_not_start_any_more_can_be_left(
    versions: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor, web_processes: str
) -> None:
    settings = {**versions, "FAKE_BROKEN_VERSION": "1"}
    keys = {"admin_key": "chief", "web_processes": web_processes}
    with fake_service(settings, **keys) as (url, server):
        held = [senders.submit(predict, url, command(held=True)) for _ in range(2)]
        wait_for((tmp_path / "gate.held").exists)
        (tmp_path / "broken").touch()
        for worker in programs(server, WORKER):
            worker.kill()
        assert {future.result().status_code for future in held} == {503}
        assert switch(url, "2").status_code == 200
        assert predict(url, command(class_index=4)).json()["prediction"] == "two-4"


@pytest.mark.parametrize(("kills", "status"), [(STARTS_IF_KILLED - 1, 200), (STARTS_IF_KILLED, 400)])
def test_a_worker_that_is_killed_while_it_loads_is_started_again(
    versions: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor, kills: int, status: int
) -> None:
    with fake_service(versions, instances="1", admin_key="chief") as (url, server):
        seen = programs(server, WORKER)
        (tmp_path / "loading").touch()
        switching = senders.submit(switch, url, "2")
        for _ in range(kills):
            wait_for((tmp_path / "loading.held").exists)
            (new,) = (worker for worker in programs(server, WORKER) if worker not in seen)
            seen.append(new)
            new.kill()
            new.wait(60)
            (tmp_path / "loading.held").unlink()
        (tmp_path / "loading").unlink()
        assert switching.result().status_code == status
        answer = predict(url, command(class_index=4)).json()["prediction"]
        assert answer == ("two-4" if status == 200 else "one-4")
        assert len(programs(server, WORKER)) == 1
