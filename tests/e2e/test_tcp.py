"""The TCP front-end: real sockets, a fake backend, and clients that mean no good."""

import base64
import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
import requests

from smallplates.client.tcp import TcpAnswer as Answer
from smallplates.client.tcp import TcpClient
from smallplates.web.dialects import tcp as frames
from smallplates.web.http.request_context import HIDDEN
from tests import pictures, servers
from tests.e2e.services import check_one_sentence, close, ended
from tests.fake.backend import Failure, command
from tests.servers import wait_for

pytestmark = pytest.mark.slow

SETTINGS = {
    "SERVING_INSTANCES": "1",
    "SERVING_QUEUE_SIZE": "40",
    "SERVING_BODY_TIMEOUT_MS": "2000",
    "SERVING_LOG_LEVEL": "error",
    "SERVING_MAX_BATCH_SIZE": "1",
    "SERVING_MAX_BODY_BYTES": "300000",
    "SERVING_WORKER_TIMEOUT_MS": "60000",
}


@dataclass(frozen=True)
class Service:
    url: str
    port: int
    gate: Path = Path()
    before: dict[str, float] = field(default_factory=dict)
    """What `growth` counts from."""

    def connect(self, key: str | None = None) -> TcpClient:
        return TcpClient("127.0.0.1", self.port, key)

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def metric(self, name: str) -> float:
        """The sum of a series over all models; 0 where it does not exist yet."""
        text = requests.get(f"{self.url}/metrics", timeout=60).text
        text = re.sub(r'model="[^"]*",?', "", text)
        values = re.findall(rf"^{re.escape(name)}(?:{{}})? ([\d.e+]+)$", text, re.MULTILINE)
        return sum(map(float, values))

    def answered(self, status: int, code: str) -> float:
        return self.metric(answers_of(status, code))

    def growth(self, name: str) -> float:
        """How much a series has grown since the test began."""
        return self.metric(name) - self.before[name]


def answers_of(status: int, code: str) -> str:
    return f'serving_requests_total{{code="{code}",path="tcp",status="{status}"}}'


CLIENT_GONE = answers_of(499, "client_gone")
COUNTED = ("serving_cancelled_total", "serving_infer_seconds_count", CLIENT_GONE)


@contextlib.contextmanager
def serving(**env: str) -> Iterator[Service]:
    port = servers.free_port()
    with servers.api("tests.fake", {**SETTINGS, "SERVING_TCP_PORT": str(port), **env}) as url:
        yield Service(url, port)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """For tests that hold nothing, and set nothing."""
    gate = tmp_path_factory.mktemp("shared") / "gate"
    with serving(FAKE_GATE=str(gate)) as running:
        yield replace(running, gate=gate)
        gate.touch()


@pytest.fixture
def held(shared: Service) -> Iterator[Service]:
    """The same, idle and with a closed gate."""
    wait_for(lambda: shared.metric("serving_free_slots") == 40)
    close(shared.gate)
    yield replace(shared, before={name: shared.metric(name) for name in COUNTED})
    shared.gate.touch()


@pytest.fixture
def service(gate: Path) -> Iterator[Service]:
    with serving(FAKE_GATE=str(gate)) as running:
        yield running
        gate.touch()


def frame(photo: bytes, number: int = 7, options: bytes = b"") -> bytes:
    """A request frame with options of any kind."""
    return (
        frames.FRAME.pack(frames.AFTER_LENGTH + len(options) + len(photo), number, len(options))
        + options
        + photo
    )


def read_answers(connection: socket.socket) -> list[Answer]:
    client = TcpClient.__new__(TcpClient)
    client._socket, client._file = connection, connection.makefile("rb")
    answers = []
    with contextlib.suppress(ConnectionError):
        while True:
            answers.append(client.receive())
    return answers


def test_several_photos_get_a_list(onnx: Service) -> None:
    photos = [make() for make in pictures.READABLE.values()][:5]
    sent = [base64.b64encode(photo).decode() for photo in photos]
    with onnx.connect() as client:
        wanted = [client.predict(photo).content["prediction"] for photo in photos]
        body = json.dumps({"image": sent}).encode()
        answer = client.predict(body, content_type="application/json")
        assert [one["prediction"] for one in answer.content["answer"]] == wanted
        bad = json.dumps({"image": [*sent, "YWJj"]}).encode()
        refused = client.predict(bad, content_type="application/json")
    assert (refused.status, refused.content["code"]) == (400, "invalid_image")
    assert refused.content["detail"].startswith("element 5: ")


@pytest.fixture
def onnx(onnx_url: str, onnx_tcp_port: int) -> Service:
    return Service(onnx_url, onnx_tcp_port)


def test_answers_come_as_they_finish_with_their_ids(gate: Path) -> None:
    with serving(FAKE_GATE=str(gate), SERVING_INSTANCES="2") as service, service.connect() as client:
        labels = requests.get(f"{service.url}/model", timeout=60).json()["labels"]
        held = client.send(command(held=True, class_index=1))
        wait_for(gate.with_suffix(".held").exists)
        others = {client.send(command(class_index=index)): labels[index] for index in range(2, 9)}
        answers = {answer.id: answer.content["prediction"] for answer in map(receive(client), others)}
        assert answers == others
        gate.touch()
        assert client.receive().id == held


def receive(client: TcpClient) -> Callable[[object], Answer]:
    return lambda _: client.receive()


def test_a_failing_computation_is_a_500_that_tells_nothing(shared: Service) -> None:
    with shared.connect() as client:
        answer = client.predict(command(failure=Failure.RAISE))
        assert (answer.status, answer.content["code"]) == (500, "internal_error")
        assert answer.content["detail"] == HIDDEN
        assert client.predict(command()).status == 200


@pytest.mark.parametrize("half", [True, False])
def test_a_client_that_leaves_costs_no_computation(held: Service, half: bool) -> None:
    with held.connect() as staying, held.raw() as leaving:
        staying.send(command(held=True))
        wait_for(held.gate.with_suffix(".held").exists)
        leaving.sendall(frame(command()) * 3)
        wait_for(lambda: held.metric("serving_free_slots") == 36)
        if half:
            leaving.shutdown(socket.SHUT_WR)
        else:
            leaving.close()
        wait_for(lambda: held.growth("serving_cancelled_total") == 3)
        held.gate.touch()
        assert staying.receive().status == 200
    wait_for(lambda: held.metric("serving_free_slots") == 40)
    assert held.growth("serving_infer_seconds_count") == 1
    assert held.growth(CLIENT_GONE) == 3


def test_a_connection_has_a_bound_of_its_own(held: Service) -> None:
    """Its 33rd request is not read; others come through, up to the service's own bound."""
    with held.connect() as client, held.connect() as other:
        client.send(command(held=True))
        wait_for(held.gate.with_suffix(".held").exists)
        for _ in range(40):
            client.send(command())
        wait_for(lambda: held.metric("serving_free_slots") == 8)
        for _ in range(8):
            other.send(command())
        wait_for(lambda: held.metric("serving_free_slots") == 0)
        other.send(command())
        refused = other.receive()
        assert (refused.status, refused.content["code"]) == (503, "overloaded")
        assert refused.content["retry_after"] >= 1
        held.gate.touch()
        assert [client.receive().status for _ in range(41)] == [200] * 41
        assert [other.receive().status for _ in range(8)] == [200] * 8


def test_bytes_that_wait_are_bounded_together_with_those_of_http() -> None:
    bounds = {"SERVING_MAX_BUFFERED_BYTES": "100000", "SERVING_BODY_TIMEOUT_MS": "20000"}
    picture = command() + bytes(10_000)
    with serving(**bounds) as service, service.connect() as client:

        def both_refused() -> bool:
            with service.raw() as slow:  # itself refused where it meets one of the other two
                slow.sendall(frame(bytes(95_001))[:-1])
                over_tcp = client.predict(picture)
                over_http = requests.post(f"{service.url}/predict", data=picture, timeout=60)
            codes = {over_tcp.content.get("code"), over_http.json().get("code")}
            return codes == {"overloaded"}

        wait_for(both_refused)
        wait_for(lambda: client.predict(picture).status == 200)


def test_a_client_that_reads_no_answers_is_cut_off(fake_model: Path) -> None:
    """Each answer ranks 4096 classes: the system's buffers take few of them."""
    with serving(SERVING_MODEL_DIR=str(fake_model)) as service, service.raw() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = frame(command(), 7, b'{"top_k": 4096}')
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(request)
        wait_for(lambda: service.answered(499, "client_gone") > 0)
        wait_for(lambda: service.metric("serving_free_slots") == 40)
        with service.connect() as client:
            assert len(client.predict(command(), top_k=4096).content["top"]) == 4096


def test_idle_connections_are_closed_and_busy_ones_are_not(gate: Path) -> None:
    env = {"SERVING_TCP_IDLE_TIMEOUT_S": "0.2", "FAKE_GATE": str(gate)}
    with serving(**env) as service, service.connect() as busy, service.raw() as idle:
        busy.send(command(held=True))
        assert idle.recv(1) == b""
        assert service.metric("serving_free_slots") == 39
        gate.touch()
        assert busy.receive().status == 200


def test_a_flood_of_connections(gate: Path) -> None:
    """Connections that wait for their client make room; those with an unanswered request don't."""
    limits = {"SERVING_TCP_MAX_CONNECTIONS": "5", "FAKE_GATE": str(gate)}
    with serving(**limits) as service, contextlib.ExitStack() as stack:
        kept = [stack.enter_context(service.connect()) for _ in range(5)]
        for client in kept:
            client.send(command(held=True))
        wait_for(lambda: service.metric("serving_free_slots") == 35)
        for _ in range(50):
            with service.raw() as refused:
                (answer,) = read_answers(refused)
                assert (answer.id, answer.status, answer.content["code"]) == (0, 503, "overloaded")
        wait_for(lambda: service.answered(503, "overloaded") == 50)
        gate.touch()
        assert {client.receive().status for client in kept} == {200}
        unfinished = stack.enter_context(service.raw())
        unfinished.sendall(frame(command())[:20])  # waits for its client, too
        silent = [stack.enter_context(service.raw()) for _ in range(50)]
        with service.connect() as client:
            assert client.predict(command()).status == 200
        assert {peer.recv(1) for peer in (unfinished, *silent[:45])} == {b""}


def test_nothing_is_left_open(shared: Service) -> None:
    with servers.process_of(shared.url) as process:
        wait_for(lambda: established(process) == 0)
        before = process.num_fds()
        for _ in range(50):
            with shared.connect() as client:
                client.predict(command())
                client.send(b"no picture")
            with shared.raw() as connection:
                connection.sendall(frame(command())[:20])
        wait_for(lambda: established(process) == 0)
        wait_for(lambda: process.num_fds() <= before)
    wait_for(lambda: shared.metric("serving_free_slots") == 40)


def established(process: psutil.Process) -> int:
    return sum(c.status != psutil.CONN_LISTEN for c in process.net_connections("tcp"))


def test_sigterm_answers_what_was_accepted(service: Service, gate: Path) -> None:
    with (
        servers.process_of(service.url) as process,
        service.connect() as client,
        service.connect() as idle,
    ):
        assert idle.predict(command()).status == 200
        held = client.send(command(held=True))
        wait_for(gate.with_suffix(".held").exists)
        process.terminate()
        wait_for(lambda: requests.get(f"{service.url}/health/ready", timeout=60).status_code == 503)
        refused = client.send(command())
        answer = client.receive()
        assert (answer.id, answer.status, answer.content["code"]) == (refused, 503, "draining")
        client._socket.sendall(frame(command())[:20])  # and never the rest
        gate.touch()
        assert client.receive().id == held
        assert client._socket.recv(1) == b""
        assert idle._socket.recv(1) == b""
        psutil.wait_procs([process], timeout=60)
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_several_web_processes_share_the_port() -> None:
    with serving(SERVING_WEB_PROCESSES="2") as service, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(service.connect()) for _ in range(32)]
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda client: client.predict(command()), clients))
        assert {answer.status for answer in answers} == {200}
        wait_for(lambda: service.answered(200, "ok") == 32)  # the last ones are counted after the answer


def test_a_free_port_cannot_be_shared() -> None:
    process = ended({**SETTINGS, "SERVING_WEB_PROCESSES": "2", "SERVING_TCP_PORT": "0"})
    check_one_sentence(process, "SERVING_TCP_PORT=0", "SERVING_WEB_PROCESSES=1")


def test_thousands_of_requests_at_once(shared: Service) -> None:
    """Sixteen connections, each with many requests under way."""

    def statuses(client: TcpClient) -> list[int]:
        ids = [client.send(command()) for _ in range(150)]
        answers = [client.receive() for _ in ids]
        assert {answer.id for answer in answers} == {*ids}
        return [answer.status for answer in answers]

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(16) as threads:
        clients = [stack.enter_context(shared.connect()) for _ in range(16)]
        seen = {status for each in threads.map(statuses, clients) for status in each}
    assert 200 in seen <= {200, 503}
    wait_for(lambda: shared.metric("serving_free_slots") == 40)
