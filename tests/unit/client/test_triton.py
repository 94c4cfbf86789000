"""`smallplates.client` with Triton's protocol, against a stub that answers as commanded."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from smallplates.client import (
    Client,
    DeadlineExceededError,
    InvalidAnswerError,
    RequestRefusedError,
    Score,
    ServerError,
    ServiceUnavailableError,
    ServingClientError,
    UnauthorizedError,
    UnreachableError,
)
from tests.browser.stub_api import MODEL, Reply, StubApi, stub_api
from tests.triton_answers import config, failure, outputs

PHOTO = b"\xff\xd8 a photo"
INFER = "/v2/models/food_classifier/infer"


@pytest.fixture
def stub() -> Iterator[StubApi]:
    with stub_api() as running:
        running.usual, running.model = outputs(), config()
        yield running


@pytest.fixture
def client(stub: StubApi) -> Iterator[Client]:
    with Client(stub.url, protocol="triton", backoff_s=0.001, backoff_cap_s=0.001, tries=3) as made:
        yield made


def split(content: bytes, head_bytes: int) -> tuple[Any, bytes]:
    """The JSON of a binary request, and what follows it."""
    return json.loads(content[:head_bytes]), content[head_bytes:]


def test_the_photo_follows_the_json(stub: StubApi, client: Client) -> None:
    prediction = client.predict(PHOTO, top_k=5, timeout_s=2, priority="bulk", request_id="r-1")
    assert prediction.top[:2] == (Score("Soup", 0.924), Score("Rice", 0.041))
    assert prediction.body["top"][0] == {"label": "Soup", "probability": 0.924}
    asked = stub.asked[0]
    head, tail = split(asked.body, int(asked.headers["Inference-Header-Content-Length"]))
    assert asked.path == INFER
    assert tail == len(PHOTO).to_bytes(4, "little") + PHOTO
    (tensor,) = head["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("INPUT_IMAGE", "BYTES", [1, 1])
    assert tensor["parameters"] == {"binary_data_size": len(tail)}
    assert head["parameters"] == {"timeout": 2_000_000, "top_k": 5}
    assert [output["name"] for output in head["outputs"]] == ["FOOD_LABEL", "PROBABILITY"]
    assert (asked.headers["X-Priority"], asked.headers["X-Request-ID"]) == ("bulk", "r-1")


def test_base64(stub: StubApi, client: Client) -> None:
    stub.usual = outputs({"Soup": 0.924})
    prediction = client.predict(PHOTO, base64=True)
    assert prediction.top == (Score("Soup", 0.924),)
    assert prediction.body == {"prediction": "Soup", "probability": 0.924}
    assert stub.asked[0].body["inputs"][0]["data"] == [base64.b64encode(PHOTO).decode()]
    assert stub.asked[0].body["parameters"] == {"timeout": 30_000_000}


def test_a_server_without_top_k_answers_the_best(stub: StubApi, client: Client) -> None:
    stub.usual = outputs({"Soup": 0.924})
    assert client.predict(PHOTO, top_k=5).top == (Score("Soup", 0.924),)


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        (failure(400, "not a JPEG"), RequestRefusedError, "invalid_request"),
        (failure(401, "no key"), UnauthorizedError, "unauthorized"),
        (failure(403, "restricted"), RequestRefusedError, "unauthorized"),
        (failure(404, "unknown model"), RequestRefusedError, "not_found"),
        (failure(413, "too large"), RequestRefusedError, "payload_too_large"),
        (failure(418, "a teapot"), RequestRefusedError, "http_418"),
        (failure(500, "stub is not healthy"), ServerError, "internal_error"),
        (failure(503, "Exceeds maximum queue size"), ServiceUnavailableError, "overloaded"),
        (failure(504, "deadline"), DeadlineExceededError, "deadline_exceeded"),
        (Reply(502, b"<html>"), UnreachableError, "unreachable"),
        (Reply(302, b""), InvalidAnswerError, "invalid_answer"),
        (Reply(404, b""), InvalidAnswerError, "invalid_answer"),
    ],
)
def test_errors(
    stub: StubApi, client: Client, reply: Reply, kind: type[ServingClientError], code: str
) -> None:
    stub.usual = reply
    with pytest.raises(kind) as caught:
        client.predict(PHOTO)
    assert (caught.value.status, caught.value.code) == (reply.status, code)
    if isinstance(reply.body, dict):
        assert caught.value.detail == reply.body["error"]
    assert len(stub.asked) == 1


def test_a_503_that_says_when_is_tried_again(stub: StubApi, client: Client) -> None:
    stub.answers.append(Reply(503, {"error": "busy"}, {"Retry-After": "0"}))
    assert client.predict(PHOTO).tries == 2


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        [],
        {},
        {"outputs": None},
        {"outputs": [{}]},
        {"outputs": [{"name": "FOOD_LABEL", "data": ["Soup"]}]},
        outputs({}).body,
        outputs({"Soup": 1.5}).body,
        outputs({"Soup": "high"}).body,
        {
            "outputs": [
                {"name": n, "data": d} for n, d in (("FOOD_LABEL", ["a", "b"]), ("PROBABILITY", [1]))
            ]
        },
        {"outputs": [{"name": n, "data": 7} for n in ("FOOD_LABEL", "PROBABILITY")]},
    ],
)
def test_garbage(stub: StubApi, client: Client, body: Any) -> None:
    stub.usual = Reply(200, body)
    with pytest.raises(InvalidAnswerError):
        client.predict(PHOTO)


def test_the_model_describes_itself(client: Client) -> None:
    model = client.model()
    assert (model.name, model.version) == ("food11", "1")
    assert model.labels == tuple(MODEL["labels"])
    assert model.body["thresholds"] == MODEL["thresholds"]
    assert (model.body["backend"], model.body["device"]) == ("python", "cpu")


@pytest.mark.parametrize(
    "parameters",
    [None, 3, {}, {"model.json": "x"}, {"model.json": {"string_value": "{"}}]
    + [{"model.json": {"string_value": text}} for text in ("[]", "[" * 100_000)],
)
def test_a_model_without_description(stub: StubApi, client: Client, parameters: Any) -> None:
    stub.model = {**config(), "parameters": parameters, "instance_group": []}
    model = client.model()
    assert (model.name, model.version, model.labels) == ("food_classifier", "", ())
    assert model.body == {"name": "food_classifier", "backend": "python", "device": ""}


def test_another_model_with_the_same_tensors(stub: StubApi, client: Client) -> None:
    client.predict(PHOTO, model="birds")
    client.predict(PHOTO, model="birds", base64=True)
    assert [asked.path for asked in stub.asked] == ["/v2/models/birds/infer"] * 2
    stub.model = lambda path: {**config(), "parameters": {}, "name": path}
    assert client.model("birds").name == "/v2/models/birds/config"


def test_no_model_at_all(stub: StubApi, client: Client) -> None:
    stub.model = []
    with pytest.raises(InvalidAnswerError):
        client.model()


def test_readiness(stub: StubApi, client: Client) -> None:
    stub.ready = Reply(200, b"")
    assert client.ready()
    for status in (400, 404, 503):
        stub.ready = failure(status, "Model version not ready")
        readiness = client.ready()
        assert (readiness.ready, readiness.detail) == (False, "Model version not ready")
    stub.ready = Reply(400, b"")
    assert client.ready().detail == "the model is not ready"
    stub.ready = failure(500, "out of order")
    with pytest.raises(ServerError):
        client.ready()


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="'grpc' is not one of native, triton"):
        Client(protocol="grpc")  # type: ignore[arg-type]
