"""Byte for byte what every protocol answers: the pairs of `tests/golden`; no change is by accident.

A folder there is a service, its folders are protocols.

Where a change is meant, delete the `.response` file: the test writes it anew, and fails once, so that
somebody looks at it.
"""

import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import pytest

from tests import exports, servers
from tests.fake.model import write_model

GOLDEN = Path(__file__).parent.parent / "golden"
PAIRS = sorted(GOLDEN.glob("*/*/*.request"))
CHANGING = {b"date", b"server", b"x-request-id", b"server-timing"}


@dataclass(frozen=True)
class Service:
    http: int
    grpc: int
    tcp: int

    def ask(self, path: Path) -> bytes:
        """What it answers to the bytes of a file, without what changes from answer to answer."""
        request = path.read_bytes()
        if path.parent.name == "http":
            return over_http(self.http, request)
        if path.parent.name == "tcp":
            return over_tcp(self.tcp, request)
        return over_grpc(self.grpc, path.stem.partition("-")[0], request)


def images(folder: Path) -> str:
    """Makes a model with four classes, and returns what computes it."""
    write_model(folder, "1", name="four", labels=["bread", "soup", "rice", "egg"])
    return "tests.fake"


def texts(folder: Path) -> str:
    exports.saved(folder, exports.word_piece(), {})
    return "fastapi_onnx"


def questions(folder: Path) -> str:
    exports.asked(folder, exports.word_piece(), {})
    return "fastapi_onnx"


@pytest.fixture(scope="module")
def service_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Service]]:
    """Returns the one whose answers are in a folder, on all its ports; started when first asked for."""
    with ExitStack() as stack:

        @cache
        def started(kind: str) -> Service:
            folder = tmp_path_factory.mktemp("models") / "four"
            build = {"images": images, "texts": texts, "questions": questions}[kind](folder)
            ports = servers.free_port(), servers.free_port()
            env = {
                "SERVING_MODEL_DIR": str(folder),
                "SERVING_LOG_LEVEL": "error",
                "SERVING_MAX_BATCH_SIZE": "1",
                "SERVING_GRPC_PORT": str(ports[0]),
                "SERVING_TCP_PORT": str(ports[1]),
                **servers.UNMEASURED,
            }
            url = stack.enter_context(servers.api(build, env))
            return Service(urlsplit(url).port or 0, *ports)

        yield started


def over_http(port: int, request: bytes) -> bytes:
    """The answer to a whole request that asks for the connection's end; its headers in order."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    kept = sorted(line for line in headers if line.partition(b":")[0].lower() not in CHANGING)
    return b"\r\n".join([status, *kept, b"", body])


def over_grpc(port: int, name: str, request: bytes) -> bytes:
    """The serialised answer to a serialised message; `name` is SERVICE.METHOD, or a method of v2."""
    service, _, method = name.rpartition(".")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(f"/{service or 'inference.GRPCInferenceService'}/{method}")
        answer: bytes = call(request, timeout=60)
        return answer


def over_tcp(port: int, request: bytes) -> bytes:
    """The answer to a frame; its durations, and what their digits add to its length, are taken out."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        head = connection.recv(10, socket.MSG_WAITALL)
        length, number, status = struct.unpack(">IIH", head)
        body = connection.recv(length - 6, socket.MSG_WAITALL)
    steady = re.sub(rb'("(?:decode|queue|infer|total)":)[\d.]+', rb"\g<1>0", body)
    return struct.pack(">IIH", length - len(body) + len(steady), number, status) + steady


@pytest.mark.parametrize("path", PAIRS, ids=lambda path: "-".join((*path.parts[-3:-1], path.stem)))
def test_the_answer_is_the_same_to_the_byte(service_of: Callable[[str], Service], path: Path) -> None:
    answer = re.sub(rb'("created":)[0-9]+', rb"\g<1>0", service_of(path.parts[-3]).ask(path))
    golden = path.with_suffix(".response")
    if not golden.exists():
        golden.write_bytes(answer)
        pytest.fail(f"{golden.name} is new: look at it, and run the test again")
    assert answer == golden.read_bytes()


def test_every_protocol_has_its_pairs() -> None:
    for folder in {path.parent.parent for path in PAIRS}:
        names = [f"{path.parent.name}-{path.stem}" for path in folder.glob("*/*.request")]
        for protocol in (
            "http-predict",
            "http-v2",
            "http-tfserving",
            "http-torchserve",
            "grpc-Model",
            "grpc-tensorflow",
            "grpc-org.pytorch",
            "tcp",
        ):
            assert any(name.startswith(protocol) for name in names), (folder, protocol)
    answers = {path.with_suffix(".request") for path in GOLDEN.glob("*/*/*.response")}
    assert answers == set(PAIRS)
