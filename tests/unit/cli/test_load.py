"""`smallplates load`: what it sends to which server, and what it says if nothing comes of it."""

import json
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smallplates.cli.commands import app
from smallplates.cli.load import payloads, wrk
from smallplates.cli.load.command import limit_per_second
from smallplates.cli.load.payloads import Payload, Protocol
from smallplates.cli.load.target import Target
from smallplates.errors import ConfigurationError
from smallplates.settings import ROOT
from smallplates.web.grpc.generated import open_inference_pb2 as pb
from tests import command_line, servers
from tests.browser.stub_api import Asked, Reply, stub_api

ONCE = ("--concurrency=1", "--windows=1", "--window=0.05", "--warm-up=0")
RULER: dict[str, Any] = {
    "name": "ruler",
    "example": {"size": [1.5, 2.5], "unit": "cm", "more": {"a": 1}, "none": None},
    "request_schema": {"properties": {"size": {}, "unit": {}, "more": {}, "none": {}}},
    "batched": True,
}
RULER_INPUTS = [
    {"name": "SIZE", "datatype": "FP64", "shape": [-1, -1]},
    {"name": "UNIT", "datatype": "BYTES", "shape": [-1, 1]},
    {"name": "MORE", "datatype": "BYTES", "shape": [-1, 1]},
    {"name": "NONE", "datatype": "BOOL", "shape": [-1, 1]},
]
SIZES = b"\0\0\0\0\0\0\xf8?" + b"\0\0\0\0\0\0\x04@"
TEXTS = [b"\2\0\0\0cm", b'\x08\0\0\0{"a": 1}']
TENSORS = [
    {"name": "SIZE", "datatype": "FP64", "shape": [1, 2], "data": [1.5, 2.5]},
    {"name": "UNIT", "datatype": "BYTES", "shape": [1], "data": ["cm"]},
    {"name": "MORE", "datatype": "BYTES", "shape": [1], "data": ['{"a": 1}']},
]
GRAPH_INPUTS = [
    {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
    {"name": "y", "datatype": "INT64", "shape": [-1, -1]},
]


def load(*arguments: str, code: int = 0) -> str:
    return command_line.run(app, "load", *ONCE, *arguments, code=code)


@contextmanager
def server(answers: Mapping[str, object]) -> Iterator[tuple[str, list[Asked]]]:
    """Its URL, and the requests that it gets; `answers` has what is not 404: JSON, or a text."""

    def answer(path: str) -> Reply:
        found = answers.get(path)
        body = found.encode() if isinstance(found, str) else found
        return Reply(404 if found is None else 200, body)

    with stub_api() as stub:
        stub.model, stub.usual = answer, lambda asked: answer(asked.path)
        yield stub.url, stub.asked


def described(model: Mapping[str, Any], inputs: object, name: str = "") -> dict[str, object]:
    """What the service says of a model: of the default one, or of another with this name."""
    v2 = f"/v2/models/{name or model['name']}"
    return {f"/model/{name}" if name else "/model": model, v2: {"inputs": inputs}}


def one_field(field: str, value: str) -> dict[str, object]:
    """What the service says of a model `one` whose only field is a photo or a text."""
    about = {"name": "one", "example": {field: value}, "request_schema": {"properties": {field: {}}}}
    return described(about, [{"name": "PIC", "datatype": "BYTES", "shape": [-1, 1]}])


def payload_of(url: str, protocol: Protocol, *items: bytes, model: str | None = None) -> Payload:
    """The only request that is sent."""
    (payload,) = Target(url, [*items], protocol, model=model).payloads()
    return payload


@pytest.mark.parametrize(
    ("protocol", "path", "body"),
    [
        (Protocol.JSON, "/predict", RULER["example"]),
        (Protocol.RAW, "/predict", RULER["example"]),
        (Protocol.TORCHSERVE, "/predictions/ruler", RULER["example"]),
        (Protocol.V2, "/v2/models/ruler/infer", {"inputs": TENSORS}),
        (
            Protocol.TF_SERVING,
            "/v1/models/ruler:predict",
            {"instances": [{"SIZE": [1.5, 2.5], "UNIT": "cm", "MORE": '{"a": 1}'}]},
        ),
    ],
)
@pytest.mark.parametrize("model", [None, "ruler"])
def test_the_request_is_the_models_own_example(
    protocol: Protocol, path: str, body: object, model: str | None
) -> None:
    path = "/predict/ruler" if model and path == "/predict" else path
    with server({**described(RULER, RULER_INPUTS, model or ""), path: {}}) as (url, received):
        assert Target(url, [], protocol, model=model).exactly(1, 1).statuses == {"200": 1}
    assert [(asked.path, asked.json()) for asked in received] == [(path, body)]


def test_binary_tensors_and_fields_over_tcp() -> None:
    with server(described(RULER, RULER_INPUTS, "ruler")) as (url, _):
        binary = payload_of(url, Protocol.V2_RAW, model="ruler")
        (call,) = Target(url, [], Protocol.GRPC, port=1, model="ruler").wire()
        (frame,) = Target(url, [], Protocol.TCP, "secret", port=1, model="ruler").wire()
    length = int(binary.headers["Inference-Header-Content-Length"])
    head = json.loads(binary.body[:length])
    sizes = [tensor["parameters"]["binary_data_size"] for tensor in head["inputs"]]
    assert sizes == [16, 6, 12]
    assert binary.body[length:] == SIZES + b"".join(TEXTS)
    message = pb.ModelInferRequest.FromString(call)
    assert message.model_name == "ruler"
    assert [(t.name, t.datatype, list(t.shape)) for t in message.inputs] == [
        (tensor["name"], tensor["datatype"], tensor["shape"]) for tensor in TENSORS
    ]
    assert list(message.raw_input_contents) == [SIZES, *TEXTS]
    assert frame.endswith(json.dumps(RULER["example"]).encode())
    for option in (b'"key":"secret"', b'"model":"ruler"', b'"content_type":"application/json"'):
        assert option in frame


@pytest.mark.parametrize("is_batched", [True, False])
def test_a_graph_gets_zeros(is_batched: bool) -> None:
    graph = {"name": "graph", "example": None, "request_schema": None, "batched": is_batched}
    shapes = [[1, 2], [1, 16]] if is_batched else [[16, 2], [16, 16]]
    with server(described(graph, GRAPH_INPUTS)) as (url, _):
        v2, rows = (
            json.loads(payload_of(url, protocol).body) for protocol in (Protocol.V2, Protocol.TF_SERVING)
        )
        output = load(url, code=2)
    assert [(t["shape"], len(t["data"])) for t in v2["inputs"]] == [(s, math.prod(s)) for s in shapes]
    columns = rows["instances"][0] if is_batched else rows["inputs"]
    assert [np.shape(columns[name]) for name in "xy"] == [
        tuple(shape[1:] if is_batched else shape) for shape in shapes
    ]
    assert "graph has no example: use v2" in output


@pytest.mark.parametrize("protocol", [Protocol.JSON, Protocol.RAW, Protocol.TORCHSERVE])
def test_a_text_takes_the_place_of_the_example(protocol: Protocol) -> None:
    with server(one_field("text", 'a "film"')) as (url, _):
        bodies = [payload_of(url, protocol, *items).body for items in ((), ("caf\xe9".encode(),))]
    texts = [json.loads(b)["text"] if protocol is Protocol.JSON else b.decode() for b in bodies]
    assert texts == ['a "film"', "caf\xe9"]


def test_a_photo_takes_the_place_of_the_example() -> None:
    with server(one_field("image", "b3du")) as (url, _):
        v2, row, raw = (
            payload_of(url, protocol, b"photo")
            for protocol in (Protocol.V2, Protocol.TF_SERVING, Protocol.V2_RAW)
        )
        sample = payload_of(url, Protocol.RAW)
        (call,) = Target(url, [b"photo"], Protocol.GRPC, port=1).wire()
    assert v2.path == raw.path == "/v2/models/one/infer"
    assert json.loads(v2.body)["inputs"][0]["data"] == ["cGhvdG8="]
    assert json.loads(row.body) == {"instances": [{"b64": "cGhvdG8="}]}
    assert (raw.body, raw.headers["Inference-Header-Content-Length"]) == (b"photo", "0")
    assert sample.body == payloads.SAMPLE.read_bytes()
    assert b"\5\0\0\0photo" in call


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--photo", str(payloads.SAMPLE)], 2, "ruler takes neither a photo nor a text"),
        (["--protocol=v2"], 2, "does not describe the inputs of ruler in v2"),
        (["--motor=gas"], 2, "--motor must be python or wrk"),
        (["--model=other"], 1, "the server does not describe a model other"),
    ],
)
def test_what_cannot_be_sent_is_one_sentence(options: list[str], code: int, words: str) -> None:
    with server(described(RULER, [])) as (url, _):
        assert words in load(url, *options, code=code)


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "--key"), (404, "got 404"), (500, "got 500"), (503, "no request succeeded")],
)
def test_a_server_that_refuses_gets_one_request_unless_it_is_overloaded(status: int, words: str) -> None:
    with stub_api() as stub:
        stub.model, stub.usual = Reply(404), Reply(status, {})
        assert words in load(stub.url, "--window=1", code=1)
        assert (len(stub.asked) == 1) == (status != 503)


def test_a_number_of_requests_is_sent_with_each_number_of_connections(tmp_path: Path) -> None:
    with server({"/predict": {}}) as (url, received):
        load(url, "--requests=7", "--concurrency=1,9", "--warm-up=60", f"--json={tmp_path / 'seen'}")
    posted = [asked for asked in received if asked.path == "/predict"]
    assert len(posted) == 1 + 2 * 7  # the first one shows whether the server refuses
    seen = json.loads((tmp_path / "seen").read_text())["results"]
    assert [row["statuses"] for row in seen] == [{"200": 7}] * 2
    assert [row["load"].split()[0] for row in seen] == ["1", "9"]  # of the plot


@pytest.mark.parametrize("options", [("--rate=5",), ("--motor=wrk",)])
def test_a_number_of_requests_is_for_a_closed_loop_in_python(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", str)  # as if wrk were installed
    with server({"/predict": {}}) as (url, _):
        assert "--requests is for a closed loop" in load(url, "--requests=3", *options, code=2)


def test_the_path_of_the_url_comes_first() -> None:
    with server({"/below/predict": {}}) as (url, _):
        load(f"{url}/below/", "--window=1")


def test_ctrl_c_ends_a_measurement_within_its_window() -> None:
    with stub_api() as stub:
        stub.model = Reply(404)
        command = (sys.executable, "-m", "smallplates", "load", stub.url, "--window=86400")
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        try:
            servers.wait_for(lambda: len(stub.asked) > 9)
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 128 + signal.SIGINT
        finally:
            process.kill()


@pytest.mark.parametrize("page", ["<html>", '["a list"]', "{}"])
@pytest.mark.parametrize(
    ("protocol", "field"), [(Protocol.JSON, "image"), (Protocol.TEXT, "text"), (Protocol.V2, "inputs")]
)
def test_another_server_gets_photos_or_texts(page: str, protocol: Protocol, field: str) -> None:
    with server({"/model": page, "/metrics": page}) as (url, _):
        assert set(json.loads(payload_of(url, protocol).body)) == {field}


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "localhost", "https://a.example", "http://a:99999", "http://["]
)
def test_an_address_that_is_none_is_a_wrong_argument(url: str) -> None:
    assert "Error: " in load(url, code=2)


@pytest.mark.parametrize("reply", [None, b"SSH-2.0-any\r\n", b""])
def test_a_server_that_cannot_be_read_is_one_sentence(reply: bytes | None) -> None:
    """None: nobody listens."""
    nobody = nullcontext(f"http://127.0.0.1:{servers.free_port()}")
    with nobody if reply is None else servers.replying(reply) as url:
        output = load(url, code=1)
    assert output.count("\n") == 1
    assert f"{url}/model cannot be read: " in output


def test_the_limit_is_the_best_rate_in_the_same_precision(tmp_path: Path) -> None:
    path = tmp_path / "limit.json"
    rates = (("fp32", 10), ("fp32", 40), ("int8", 90))
    rows = [{"precision": precision, "per_second": rate} for precision, rate in rates]
    path.write_text(json.dumps({"results": {"whole": rows}}))
    assert [limit_per_second(path, kind) for kind in ("fp32", "int8", "fp16")] == [40, 90, None]
    for content in (b"{", b"\xff", b"{}", b"[]", b'{"results": {"whole": [1]}}'):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"limit\.json is not a result of"):
            limit_per_second(path, "fp32")


@pytest.mark.skipif(not shutil.which("wrk"), reason="wrk is not installed")
@pytest.mark.parametrize("count", [1, 9])
def test_wrk_posts_all_bodies_in_turn(count: int) -> None:
    bodies = [f"body {index}".encode() for index in range(count)]
    for seconds in (0.5, 20):  # the second for a machine that hardly runs this program
        with server({"/": {}}) as (url, received):
            assert wrk.run(f"{url}/", bodies, 1, seconds).failed == 0
        contents = [asked.body for asked in received]
        if len(contents) >= 2 * count:
            break
    assert set(contents) == set(bodies)
    assert contents[count : 2 * count] == contents[:count]
