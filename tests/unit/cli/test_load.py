"""`smallplates load`: what it sends to which server, and what it says if nothing comes of it."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from smallplates.cli.commands import app
from smallplates.cli.load import payloads, server_side
from smallplates.cli.load.command import limit_per_second
from smallplates.cli.load.payloads import Protocol
from smallplates.cli.load.target import Target
from smallplates.errors import ConfigurationError
from tests import servers

ONCE = ("--concurrency=1", "--windows=1", "--window=0.05", "--warm-up=0")
FIELDS = {"size": [1.5, 2.5], "unit": "cm"}
TENSORS = [
    {"name": "SIZE", "datatype": "FP64", "shape": [1, 2], "data": [1.5, 2.5]},
    {"name": "UNIT", "datatype": "BYTES", "shape": [1, 1], "data": ["cm"]},
]


def load(*arguments: str) -> tuple[int, str]:
    """Runs the command; returns the exit code and what it wrote."""
    result = CliRunner().invoke(app, ["load", *ONCE, *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


@contextmanager
def server(answers: Mapping[str, object]) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Its URL, and the bodies that it gets with their paths; `answers` has what is not 404."""
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Answers with JSON, or with text."""
            answer = answers.get(self.path)
            body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            """Keeps the body."""
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.daemon_threads = True
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}", got
        made.shutdown()


def documented(name: str, fields: object, bodies: Mapping[str, object]) -> dict[str, object]:
    """What the service says of such a model; a second model's examples follow the default model's."""
    paths: dict[str, Any] = {}
    for path, body in {"/predict": fields, **bodies}.items():
        examples: dict[str, Any] = {"this model": {"value": body}, "other": {"value": {"no": 1}}}
        content = {"example": body} if path == "/predict" else {"examples": examples}
        if body is not None:
            paths[path] = {"post": {"requestBody": {"content": {"application/json": content}}}}
    model = {"name": name, "example": fields}
    return {"/model": model, "/openapi.json": {"paths": {"/health": {"get": {}}, **paths}}}


@pytest.mark.parametrize("protocol", ["json", "v2", "tf-serving", "torchserve"])
def test_the_request_is_the_models_own_example(protocol: str) -> None:
    bodies = {
        "json": ("/predict", FIELDS),
        "v2": ("/v2/models/{model}/infer", {"inputs": TENSORS}),
        "tf-serving": (
            "/v1/models/{model}:predict",
            {"instances": [{"SIZE": [1.5, 2.5], "UNIT": "cm"}]},
        ),
        "torchserve": ("/predictions/{model}", FIELDS),
    }
    path, body = bodies[protocol]
    answers = documented("ruler", FIELDS, dict(bodies.values()))
    answers[path.format(model="ruler")] = {}
    with server(answers) as (url, got):
        assert Target(url, [], Protocol(protocol)).exactly(1, 1).statuses == {"200": 1}
    assert {where for where, _ in got} == {path.format(model="ruler")}
    assert json.loads(got[0][1]) == body


def test_tensors_over_grpc_and_fields_over_tcp() -> None:
    with server(documented("ruler", FIELDS, {payloads.V2_INFER: {"inputs": TENSORS}})) as (url, _):
        (call,) = Target(url, [], Protocol.GRPC, port=1).wire()
        (frame,) = Target(url, [], Protocol.TCP, port=1).wire()
    from smallplates.web.api.v2.grpc_generated import open_inference_pb2 as pb

    message = pb.ModelInferRequest.FromString(call)
    assert message.model_name == "ruler"
    assert [(t.name, t.datatype, list(t.shape)) for t in message.inputs] == [
        ("SIZE", "FP64", [1, 2]),
        ("UNIT", "BYTES", [1, 1]),
    ]
    sizes = b"\0\0\0\0\0\0\xf8?" + b"\0\0\0\0\0\0\x04@"
    assert list(message.raw_input_contents) == [sizes, b"\2\0\0\0cm"]
    assert frame.endswith(json.dumps(FIELDS).encode())


@pytest.mark.parametrize("protocol", [Protocol.JSON, Protocol.RAW, Protocol.TORCHSERVE])
def test_a_text_takes_the_place_of_the_example(protocol: Protocol) -> None:
    with server(documented("mood", {"text": 'a "film"'}, {})) as (url, _):
        (own,) = Target(url, [], protocol).payloads()
        (given,) = Target(url, ["caf\xe9".encode()], protocol).payloads()
    expected = {"text": 'a "film"'}, {"text": "caf\xe9"}
    if protocol is Protocol.JSON:
        assert (json.loads(own.body), json.loads(given.body)) == expected
    else:
        assert (own.body.decode(), given.body.decode()) == tuple(fields["text"] for fields in expected)


def test_a_photo_takes_the_place_of_the_example() -> None:
    tensor = {"name": "PIC", "datatype": "BYTES", "shape": [1, 1], "data": ["b3du"]}
    with server(documented("dogs", {"image": "b3du"}, {payloads.V2_INFER: {"inputs": [tensor]}})) as (
        url,
        _,
    ):
        (made,) = Target(url, [b"photo"], Protocol.V2).payloads()
        (sample,) = Target(url, [], Protocol.RAW).payloads()
        (call,) = Target(url, [b"photo"], Protocol.GRPC, port=1).wire()
    assert made.path == "/v2/models/dogs/infer"
    assert json.loads(made.body) == {"inputs": [{**tensor, "data": ["cGhvdG8="]}]}
    assert sample.body == payloads.SAMPLE.read_bytes()
    assert b"\5\0\0\0photo" in call


def test_what_a_model_does_not_take_is_one_sentence() -> None:
    with server(documented("ruler", FIELDS, {})) as (url, _):
        for options, words in (
            (["--photo", str(payloads.SAMPLE)], "takes neither photos nor texts"),
            (["--protocol=raw"], "takes neither photos nor texts"),
            (["--protocol=v2"], "no example of a request to /v2/models/ruler/infer"),
            (["--motor=gas"], "--motor must be python or wrk"),
        ):
            code, said = load(url, *options)
            assert code == 2
            assert words in said


@pytest.mark.parametrize("page", ["<html>", '["a list"]', "{}"])
def test_another_server_gets_photos(page: str) -> None:
    with server({"/model": page, "/metrics": page, "/predict": {}}) as (url, got):
        assert Target(url, []).exactly(1, 1).statuses == {"200": 1}
    assert set(json.loads(got[0][1])) == {"image"}


def test_no_answer_200_is_a_failure() -> None:
    with server(documented("ruler", FIELDS, {})) as (url, _):
        code, said = load(url, "--window=1")
    assert code == 1
    assert "no request succeeded; statuses: 404: " in said


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "localhost", "https://a.example", "http://a:99999", "http://["]
)
def test_an_address_that_is_none_is_a_wrong_argument(url: str) -> None:
    code, said = load(url)
    assert code == 2
    assert "Error: " in said


def test_nobody_there_is_one_sentence() -> None:
    url = f"http://127.0.0.1:{servers.free_port()}"
    code, said = load(url)
    assert code == 1
    assert said == f"smallplates load: {url}/model cannot be read: [Errno 111] Connection refused\n"


@pytest.mark.parametrize("reply", [b"SSH-2.0-any\r\n", b""])
def test_a_server_without_http_is_one_sentence(reply: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(reply)
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        code, said = load(f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert code == 1
    assert said.count("\n") == 1
    assert "/model cannot be read: " in said


@pytest.mark.parametrize("content", [b"{", b"\xff", b"{}", b"[]", b'{"results": {"whole": [1]}}'])
def test_a_limit_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    (path := tmp_path / "limit.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"limit\.json is not a result of"):
        limit_per_second(path, "fp32")


def test_unreachable_is_an_error_of_both_kinds() -> None:
    with pytest.raises(OSError, match="refused"):
        server_side.get(f"http://127.0.0.1:{servers.free_port()}")
