"""Clients that mean no good, on the gRPC port: others are answered, and memory is bounded."""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import grpc
import pytest
import requests

from tests import servers
from tests.e2e.services import attempt
from tests.e2e.test_floods import is_answered
from tests.fake.backend import command
from tests.http2 import Http2
from tests.servers import metric, wait_for

pytestmark = pytest.mark.slow

INFER = "/inference.GRPCInferenceService/ModelInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
PREDICTIONS = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/StreamPredictions"
MB = 2**20
SETTINGS = {
    "SERVING_INSTANCES": "1",
    "SERVING_LOG_LEVEL": "error",
    "SERVING_MAX_BATCH_SIZE": "1",
    "SERVING_HEAD_TIMEOUT_MS": "1000",
    "SERVING_BODY_TIMEOUT_MS": "2000",
    "SERVING_GRPC_MAX_CONNECTIONS": "30",
    "SERVING_MAX_BODY_BYTES": str(4 * MB),
    "SERVING_MAX_BUFFERED_BYTES": str(16 * MB),
}
PATIENT = {"SERVING_HEAD_TIMEOUT_MS": "600000", "SERVING_BODY_TIMEOUT_MS": "60000"}


@dataclass(frozen=True)
class Service:
    """Where it speaks HTTP, and where gRPC."""

    url: str
    port: int

    def answers(self) -> bool:
        from smallplates.web.grpc.generated import open_inference_pb2 as pb

        tensor = {"name": "INPUT_IMAGE", "datatype": "BYTES", "shape": [1]}
        contents = {"bytes_contents": [command()]}
        request = pb.ModelInferRequest(
            model_name="food_classifier", inputs=[{**tensor, "contents": contents}]
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{self.port}", options) as channel:
            call = channel.unary_unary(
                INFER, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
            )
            return len(call(request, timeout=60).raw_output_contents) == 2


@contextlib.contextmanager
def serving(**env: str) -> Iterator[Service]:
    port = servers.free_port()
    settings = {**SETTINGS, "SERVING_GRPC_PORT": str(port), **env}
    with servers.api("tests.fake", settings) as url:
        yield Service(url, port)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def patient() -> Iterator[Service]:
    with serving(**PATIENT) as running:
        yield running


def prefix(length: int) -> bytes:
    """What gRPC has before each message: whether it is compressed, and its length."""
    return b"\0" + length.to_bytes(4)


def peers(service: Service, count: int, stack: contextlib.ExitStack) -> list[Http2]:
    made = [stack.enter_context(Http2(service.port)) for _ in range(count)]
    for peer in made:
        assert peer.look(20)  # the server's settings, which are acknowledged
    return made


HALVES = (b"", b"\0\0", prefix(1000), prefix(1000) + b"x" * 999)
STREAMS = range(1, 17, 2)


def peers_with_halves(service: Service, stack: contextlib.ExitStack) -> list[Http2]:
    """Connections whose STREAMS have each sent a part of a message."""
    slow = peers(service, 4, stack)
    for peer in slow:
        for stream, (path, data) in zip(STREAMS, product((INFER, LIVE), HALVES), strict=True):
            peer.call(stream, path)
            assert peer.send(stream, data) == len(data)
    return slow


def test_half_a_message_delays_nobody(patient: Service) -> None:
    with contextlib.ExitStack() as stack:
        peers_with_halves(patient, stack)
        assert patient.answers()


def test_half_a_message_ends_in_time(service: Service) -> None:
    with contextlib.ExitStack() as stack:
        slow = peers_with_halves(service, stack)

        def all_ended() -> bool:
            for peer in slow:
                peer.look(0)
            return all(peer.ended == set(STREAMS) for peer in slow)

        wait_for(all_ended)
        assert all(peer.is_open for peer in slow)  # only the calls have ended


def test_a_byte_at_a_time_is_no_way_to_stay(service: Service) -> None:
    with Http2(service.port) as peer:
        peer.call(1, INFER)
        peer.send(1, prefix(100_000))
        sent = 0
        while 1 not in peer.ended:
            assert service.answers()
            sent += peer.send(1, b"x")
            peer.look(0)
        assert sent < 100_000


@pytest.mark.parametrize("path", [INFER, STREAM, PREDICT])
def test_messages_that_never_end_hold_little_memory(patient: Service, path: str) -> None:
    """Two hundred of just under four megabytes: 800 in all, of which the service takes few."""
    with servers.process_of(patient.url) as process, contextlib.ExitStack() as stack:
        assert patient.answers()
        before = process.memory_info().rss
        data = prefix(4 * MB - 64) + bytes(4 * MB - 100)
        taken = []
        for peer in peers(patient, 10, stack):
            for stream in range(1, 41, 2):
                peer.call(stream, path)
                taken.append(peer.send(stream, data))
        assert max(taken) <= len(data)
        assert process.memory_info().rss - before < 100 * MB
        assert patient.answers()  # although all places are taken, and their time is not over
        assert is_answered(patient.url)
    wait_for(lambda: metric(patient.url, "serving_free_slots") == 256)


def test_connections_that_say_nothing_are_closed(service: Service) -> None:
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=60))
            for _ in range(10)
        ]
        assert service.answers()
        for connection in silent:
            while connection.recv(1000):
                pass


def is_refused(connection: socket.socket) -> bool:
    """Whether the service has closed it without a word."""
    try:
        return not connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_a_flood_of_connections(patient: Service) -> None:
    address = ("127.0.0.1", patient.port)
    with contextlib.ExitStack() as stack:
        flood = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(100)]
        wait_for(lambda: sum(map(is_refused, flood)) >= 70)
        assert attempt(lambda: is_answered(patient.url))
    wait_for(lambda: answers_again(patient))


def answers_again(service: Service) -> bool:
    """False as long as connections are refused."""
    try:
        return service.answers()
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017 what is waited for
        return False


def test_a_flood_of_streams_is_bounded(service: Service) -> None:
    with Http2(service.port) as peer:
        for stream in range(1, 6001, 2):
            peer.call(stream, INFER)
        assert service.answers()

        def all_ended() -> bool:
            while peer.look(0):
                pass
            return len(peer.ended) == 3000 or not peer.is_open

        wait_for(all_ended)


def test_frames_that_make_no_sense(service: Service) -> None:
    for junk in (b"\xff" * 1000, b"GET / HTTP/1.1\r\n\r\n", bytes(1000)):
        with Http2(service.port) as peer:
            peer.socket.sendall(junk)
            wait_for(lambda: not peer.look(0.05) and not peer.is_open)
    assert service.answers()


@pytest.mark.parametrize("path", [INFER, STREAM, PREDICT, PREDICTIONS])
def test_a_stranger_s_message_is_not_read(path: str) -> None:
    with serving(SERVING_API_KEY="sesame", **PATIENT) as service, Http2(service.port) as peer:
        peer.call(1, path)
        peer.send(1, prefix(1000))
        wait_for(lambda: not peer.look(0.05) and 1 in peer.ended)
        text = requests.get(f"{service.url}/metrics", timeout=60).text
        assert f'code="unauthorized",model="",path="{path}"' in text


def test_what_clients_do_is_no_error_in_the_log(tmp_path: Path) -> None:
    """One whose metadata is no text, and who vanishes while the answer waits to be sent."""
    port, log = servers.free_port(), tmp_path / "log"
    settings = {**SETTINGS, "SERVING_GRPC_PORT": str(port), "SERVING_LOG_LEVEL": "debug"}
    with servers.api("tests.fake", settings, log) as url:
        with Http2(port, window=0) as peer:
            peer.call(1, LIVE, note="\udcff")
            peer.send(1, prefix(0))
            wait_for(lambda: LIVE in requests.get(f"{url}/metrics", timeout=60).text)
        for text in ("Invalid encoding", "ExecuteBatchError raised"):
            wait_for(partial(logged, log, text), text)
        assert not logged(log, '"level":"error"')


def logged(log: Path, text: str) -> bool:
    return text in log.read_text()
