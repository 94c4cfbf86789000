"""`smallplates.client` against a real server that misbehaves as commanded: requests, answers, errors.

Threads, event loops and batches are in test_runs.py; overload and deadlines of a real service in e2e.
"""

import base64
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import smallplates.client
from smallplates.client import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    InvalidAnswerError,
    Photo,
    Rank,
    RequestRefusedError,
    Score,
    ServerError,
    ServiceUnavailableError,
    ServingClientError,
    Span,
    Timing,
    UnauthorizedError,
    UnreachableError,
    UnreadablePhotoError,
    exchange,
    tcp,
)
from smallplates.settings import Settings
from tests.browser.stub_api import LABELS, MODEL, Reply, StubApi, error, ok, stub_api
from tests.triton_answers import config, failure, outputs

PHOTO = b"\xff\xd8 a photo"
PROXY = "http://127.0.0.1:9"  # nobody listens there
QUICK: dict[str, Any] = {"backoff_s": 0.001, "backoff_cap_s": 0.001, "tries": 3}


@pytest.fixture
def client(stub: StubApi) -> Iterator[Client]:
    with Client(stub.url, **QUICK) as made:
        yield made


@pytest.fixture
def triton_stub() -> Iterator[StubApi]:
    with stub_api() as running:
        running.usual, running.model = outputs(), config()
        yield running


@pytest.fixture
def triton(triton_stub: StubApi) -> Iterator[Client]:
    with Client(triton_stub.url, protocol="triton", **QUICK) as made:
        yield made


def test_the_photo_goes_as_it_is(stub: StubApi, client: Client) -> None:
    prediction = client.predict(PHOTO)
    assert (prediction.label, prediction.probability) == ("Soup", 0.924)
    assert prediction.top == (Score("Soup", 0.924),)
    assert prediction.timing == Timing(1.2, 0.4, 7.3, 9.6)
    assert prediction.tries == 1
    assert prediction.latency_s > 0
    asked = stub.asked[0]
    assert (asked.path, asked.body) == ("/predict", PHOTO)
    assert asked.headers["Content-Type"] == "application/octet-stream"
    assert asked.headers["X-Request-ID"] == prediction.request_id
    assert not {"Authorization", "X-Priority"} & set(asked.headers)


def test_every_option_is_sent(stub: StubApi) -> None:
    with Client(f"{stub.url}/", api_key="k-1") as client:
        prediction = client.predict(
            PHOTO, top_k=5, timeout_s=1.1, priority="bulk", base64=True, request_id="r-1"
        )
    assert (len(prediction.top), prediction.request_id) == (5, "r-1")
    asked = stub.asked[0]
    assert asked.path == "/predict?top_k=5"
    assert asked.body == {"image": base64.b64encode(PHOTO).decode()}
    expected = {"Authorization": "Bearer k-1", "X-Priority": "bulk", "X-Request-ID": "r-1"}
    assert expected.items() <= asked.headers.items()
    assert 500 <= int(asked.headers["X-Request-Timeout-Ms"]) <= 1000
    assert "k-1" not in repr(client)


def test_photos_of_every_kind(stub: StubApi, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(PHOTO)
    kinds: list[Photo] = [PHOTO, bytearray(PHOTO), memoryview(PHOTO), io.BytesIO(PHOTO), path, str(path)]
    with path.open("rb") as file:
        for photo in (*kinds, file):
            client.predict(photo)
    assert [asked.photo for asked in stub.asked] == [PHOTO] * 7


def test_what_cannot_be_read_is_not_sent(stub: StubApi, client: Client, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    closed = io.BytesIO()
    closed.close()
    with (tmp_path / "text").open() as text:
        for photo in (tmp_path / "missing", tmp_path, closed, text, "\0"):
            with pytest.raises(UnreadablePhotoError):
                client.predict(photo)  # type: ignore[arg-type]  # a text file is the caller's mistake
    assert not stub.asked


def test_the_photo_follows_tritons_json(triton_stub: StubApi, triton: Client) -> None:
    prediction = triton.predict(PHOTO, top_k=5, timeout_s=2, priority="bulk", request_id="r-1")
    assert prediction.top[:2] == (Score("Soup", 0.924), Score("Rice", 0.041))
    assert prediction.body["top"][0] == {"label": "Soup", "probability": 0.924}
    asked = triton_stub.asked[0]
    head_bytes = int(asked.headers["Inference-Header-Content-Length"])
    head, tail = json.loads(asked.body[:head_bytes]), asked.body[head_bytes:]
    assert asked.path == "/v2/models/food_classifier/infer"
    assert tail == len(PHOTO).to_bytes(4, "little") + PHOTO
    (tensor,) = head["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("INPUT_IMAGE", "BYTES", [1, 1])
    assert tensor["parameters"] == {"binary_data_size": len(tail)}
    assert head["parameters"] == {"timeout": 2_000_000, "top_k": 5}
    assert [output["name"] for output in head["outputs"]] == ["FOOD_LABEL", "PROBABILITY"]
    assert (asked.headers["X-Priority"], asked.headers["X-Request-ID"]) == ("bulk", "r-1")


def test_a_triton_that_answers_only_the_best(triton_stub: StubApi, triton: Client) -> None:
    triton_stub.usual = outputs({"Soup": 0.924})
    assert triton.predict(PHOTO, top_k=5).top == (Score("Soup", 0.924),)
    prediction = triton.predict(PHOTO, base64=True)
    assert prediction.body == {"prediction": "Soup", "probability": 0.924}
    body = triton_stub.asked[1].body
    assert body["inputs"][0]["data"] == [base64.b64encode(PHOTO).decode()]
    assert body["parameters"] == {"timeout": 30_000_000}


def test_vectors_and_rankings(stub: StubApi, client: Client) -> None:
    stub.usual = Reply(200, [{"embedding": [0.5, -1]}, {"embedding": [0.25, 2.0]}])
    found = client.embed(("warm", "cold"), dimensions=2, prompt_name="query", normalize=False)
    assert found.vectors == [[0.5, -1.0], [0.25, 2.0]]
    stub.usual = Reply(200, [{"embedding": [0.5]}])
    assert client.embed("warm", model="b").vectors == [[0.5]]
    best, last = Rank(1, 0.9, "cold"), Rank(0, 0.1, "warm")
    ranks = [{"index": rank.index, "score": rank.score} for rank in (best, last)]
    stub.usual = Reply(200, {"ranking": ranks})
    assert client.rerank("ice", ("warm", "cold"), raw_scores=False).ranking == (best, last)
    assert client.rerank("ice", ["warm", "cold"], top_k=2, truncate=True).ranking[0] == best
    ranked = {"query": "ice", "texts": ["warm", "cold"]}
    assert [(asked.path, asked.body) for asked in stub.asked] == [
        (
            "/predict",
            {"text": ["warm", "cold"], "dimensions": 2, "prompt_name": "query", "normalize": False},
        ),
        ("/predict/b", {"text": ["warm"]}),
        ("/predict", {**ranked, "raw_scores": False}),
        ("/predict?top_k=2", {**ranked, "truncate": True}),
    ]


def test_texts_and_questions(stub: StubApi, client: Client) -> None:
    assert client.classify_text("warm \u00e9", "cold", top_k=5).top[0] == Score("Soup", 0.924)
    assert client.classify_text("\ud83d").label == "Soup"  # what is no text is the service's to refuse
    best, other = Span("two", 0.75, 4, 7), Span("", 0.25, 0, 0)
    stub.usual = Reply(200, {**vars(best), "top": [vars(best), vars(other)]})
    answer = client.answer("How many?", "The two.", top_k=2, allow_no_answer=True, priority="bulk")
    assert (answer.answer, answer.start, answer.top) == ("two", 4, (best, other))
    assert client.answer("How many?", "The two.").top == (best,)
    question = {"question": "How many?", "context": "The two."}
    assert [asked.body for asked in stub.asked] == [
        {"text": "warm \u00e9", "text_pair": "cold"},
        {"text": "\ud83d"},
        {**question, "allow_no_answer": True},
        question,
    ]
    assert stub.asked[0].path == "/predict?top_k=5"
    assert stub.asked[0].headers["Content-Type"] == "application/json"
    assert stub.asked[2].headers["X-Priority"] == "bulk"


def test_any_fields(stub: StubApi, client: Client, triton: Client) -> None:
    answer = client.call({"text": ["warm", "cold"]}, top_k=2, priority="bulk")
    assert (answer.body["prediction"], answer.timing.total_ms) == ("Soup", 9.6)
    assert stub.asked[0].path == "/predict?top_k=2"
    bodies: list[Any] = [[{"prediction": "a"}], 7, None]
    stub.answers.extend(Reply(200, body) for body in bodies)
    assert [client.call({}).body for _ in bodies] == bodies
    with pytest.raises(ValueError, match="only photos"):
        triton.classify_text("warm")


def test_models_by_name(stub: StubApi, client: Client, triton_stub: StubApi, triton: Client) -> None:
    """Each kind of request, and the description, by the name of a model."""
    span = {"answer": "two", "score": 0.75, "start": 4, "end": 7}
    stub.answers += [ok(), ok(), ok(), ok(), Reply(200, span), Reply(200, {"species": "setosa"})]
    client.predict(PHOTO, model="a-1", top_k=5)
    client.predict(PHOTO, model="a-1", base64=True)
    next(client.predict_many([PHOTO], model="a-1"))
    client.classify_text("warm", model="b")
    client.answer("How many?", "The two.", model="../c")
    assert client.call({"petal_length": 1.4}, model="iris").body == {"species": "setosa"}
    assert stub.asked[-1].body == {"petal_length": 1.4}
    predict = "/predict/a-1"
    paths = [f"{predict}?top_k=5", predict, predict, "/predict/b", "/predict/..%2Fc", "/predict/iris"]
    assert [asked.path for asked in stub.asked] == paths
    stub.model = lambda path: {**MODEL, "name": path}
    assert [client.model(name).name for name in ("a-1", None)] == ["/model/a-1", "/model"]
    triton.predict(PHOTO, model="birds")
    assert triton_stub.asked[0].path == "/v2/models/birds/infer"
    triton_stub.model = lambda path: {**config(), "parameters": {}, "name": path}
    assert triton.model("birds").name == "/v2/models/birds/config"


ANSWERS: list[tuple[Reply, type[ServingClientError], str]] = [
    (error(400, "invalid_image"), RequestRefusedError, "invalid_image"),
    (error(401, "unauthorized"), UnauthorizedError, "unauthorized"),
    (error(413, "image_too_large"), RequestRefusedError, "image_too_large"),
    (error(500, "worker_crashed"), ServerError, "worker_crashed"),
    (error(503, "overloaded"), ServiceUnavailableError, "overloaded"),
    (error(503, "overloaded", 11), ServiceUnavailableError, "overloaded"),
    (error(504, "deadline_exceeded"), DeadlineExceededError, "deadline_exceeded"),
    (Reply(502, b"<html>"), UnreachableError, "unreachable"),
    (Reply(429, b"<html>"), ServiceUnavailableError, "unavailable"),
    (Reply(503, b"<html>", {"Retry-After": "soon"}), ServiceUnavailableError, "unavailable"),
    (Reply(404, b"<html>"), InvalidAnswerError, "invalid_answer"),
    (Reply(302, b"", {"Location": PROXY}), InvalidAnswerError, "invalid_answer"),
    (Reply(200, b"<html>"), InvalidAnswerError, "invalid_answer"),
    (Reply(200, b"[" * 100_000), InvalidAnswerError, "invalid_answer"),
    (Reply(200, b" " * 5_000_000), InvalidAnswerError, "invalid_answer"),
    (failure(400, "not a JPEG"), RequestRefusedError, "invalid_request"),
    (failure(401, "no key"), UnauthorizedError, "unauthorized"),
    (failure(403, "restricted"), RequestRefusedError, "unauthorized"),
    (failure(404, "unknown model"), RequestRefusedError, "not_found"),
    (failure(413, "too large"), RequestRefusedError, "payload_too_large"),
    (failure(418, "a teapot"), RequestRefusedError, "http_418"),
    (failure(500, "stub is not healthy"), ServerError, "internal_error"),
    (failure(503, "Exceeds maximum queue size"), ServiceUnavailableError, "overloaded"),
    (failure(504, "deadline"), DeadlineExceededError, "deadline_exceeded"),
]


@pytest.mark.parametrize(("reply", "kind", "code"), ANSWERS)
@pytest.mark.parametrize("name", ["client", "triton"])
def test_errors_that_are_final(
    request: pytest.FixtureRequest, name: str, reply: Reply, kind: type[ServingClientError], code: str
) -> None:
    asker: Client = request.getfixturevalue(name)
    server: StubApi = request.getfixturevalue("stub" if name == "client" else "triton_stub")
    server.usual = reply
    with pytest.raises(kind) as caught:
        asker.predict(PHOTO, request_id="r-2")
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code) == (reply.status, code)
    if isinstance(reply.body, dict):
        detail = reply.body.get("detail", reply.body.get("error"))
        assert str(caught.value) == f"{detail} ({reply.status} {code}, request r-2)"
        assert caught.value.body == reply.body
    assert len(server.asked) == 1


BEST = {"prediction": "Soup", "probability": 0.9}
TOPS: list[Any] = [None, [], [{"label": "Rice", "probability": 0.1}], {}, [1]]


SPAN = {"answer": "two", "score": 0.75, "start": 4, "end": 7}
CHANGED: list[dict[str, Any]] = [
    *({"start": -1}, {"end": 3}, {"start": True}, {"score": -0.1}, {"score": "1"}),
    *({"answer": None}, {"top": [{}]}),
]
TEXTS = ["warm", "cold"]
NO_ANSWERS: dict[str, tuple[Callable[[Client], object], list[Any]]] = {
    "predict": (
        lambda client: client.predict(PHOTO, top_k=2),
        [
            {"prediction": "Soup"},
            *({"prediction": "Soup", "probability": wrong} for wrong in (7, 10**400, True, "1", None)),
            {"prediction": 1, "probability": 0.5},
            *({**BEST, "top": top} for top in TOPS),
            *([], 7, None, {}),
        ],
    ),
    "answer": (
        lambda client: client.answer("How many?", "The two.", top_k=1),
        [{**SPAN, "top": [SPAN], **changed} for changed in CHANGED],
    ),
    "embed": (
        lambda client: client.embed(TEXTS),
        [
            *({"embedding": [1.0]}, [], [{"embedding": [1.0]}] * 3, [[1.0], [2.0]], {"ranking": {}}),
            *([{"embedding": wrong}] * 2 for wrong in (1, [True], ["1"])),
            [{"embedding": [1.0]}, {"embedding": [1.0, 2.0]}],
        ],
    ),
    "rerank": (
        lambda client: client.rerank("ice", TEXTS),
        [
            *({"ranking": {}}, [], [{"embedding": [1.0]}] * 2),
            *(
                {"ranking": [{"index": index, "score": score}]}
                for index, score in ((2, 1.0), (-1, 1.0), (0, "much"))
            ),
        ],
    ),
    "triton": (
        lambda client: client.predict(PHOTO),
        [
            *([], {}, {"outputs": None}, {"outputs": [{}]}),
            {"outputs": [{"name": "FOOD_LABEL", "data": ["Soup"]}]},
            *(outputs(scores).body for scores in ({}, {"Soup": 1.5}, {"Soup": "high"})),
            *(
                {"outputs": [{"name": "FOOD_LABEL", "data": a}, {"name": "PROBABILITY", "data": b}]}
                for a, b in ((["a", "b"], [1]), (7, 7))
            ),
        ],
    ),
}


def test_answers_as_large_as_those_of_the_service(
    client: Client, stub: StubApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.usual = Reply(200, {"vectors": "x" * 5_000_000})
    assert client.call({"text": "soup"}).body == stub.usual.body
    assert 3 * Settings().max_answer_bytes <= tcp.MAX_ANSWER_BYTES  # a number takes up to 12 bytes
    monkeypatch.setattr(exchange, "MAX_ANSWER_BYTES", 5_000_000)
    with pytest.raises(InvalidAnswerError):
        client.call({"text": "soup"})


@pytest.mark.parametrize("kind", NO_ANSWERS)
def test_answers_that_are_none(stub: StubApi, kind: str) -> None:
    ask, bodies = NO_ANSWERS[kind]
    with Client(stub.url, protocol="triton" if kind == "triton" else "native", **QUICK) as client:
        for body in bodies:
            stub.usual = Reply(200, body)
            with pytest.raises(InvalidAnswerError):
                ask(client)
    assert len(stub.asked) == len(bodies)


@pytest.mark.parametrize(
    "headers", [{"Retry-After": "0"}, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}]
)
def test_a_503_with_retry_after_is_tried_again(
    stub: StubApi, client: Client, headers: dict[str, str]
) -> None:
    busy = Reply(503, {"detail": "busy", "code": "overloaded"}, headers)
    stub.answers.extend([busy, busy])
    assert client.predict(PHOTO).tries == 3
    assert len({asked.headers["X-Request-ID"] for asked in stub.asked}) == 1
    assert [asked.photo for asked in stub.asked] == [PHOTO] * 3
    stub.usual = busy
    with pytest.raises(ServiceUnavailableError) as caught:
        client.predict(PHOTO)
    assert (caught.value.code, caught.value.retryable) == ("overloaded", True)
    assert caught.value.retry_after_s == 0
    assert len(stub.asked) == 6
    stub.answers.append(error(503, "overloaded", 9))
    with pytest.raises(ServiceUnavailableError):
        client.predict(PHOTO, timeout_s=5)  # no pause goes beyond the budget
    assert len(stub.asked) == 7


def test_nobody_listens(stub: StubApi, client: Client) -> None:
    stub.down()
    calls: list[Callable[[], object]] = [client.ready, client.model]
    for call in (lambda: client.predict(PHOTO, request_id="r-3"), *calls):
        with pytest.raises(UnreachableError, match=f"no connection to {stub.url}, or") as caught:
            call()
        assert (caught.value.status, caught.value.retryable) == (None, True)


def test_messages_name_the_address_without_a_password() -> None:
    with (
        Client("http://ann:secret@127.0.0.1:1/api", tries=1) as client,
        pytest.raises(UnreachableError, match=r"^no connection to http://127\.0\.0\.1:1/api, or"),
    ):
        client.predict(PHOTO)


def test_connections_are_kept_and_replaced(stub: StubApi, client: Client) -> None:
    for _ in range(20):
        client.predict(PHOTO)
    assert stub.connections == 1
    stub.down()
    stub.up()
    assert client.predict(PHOTO).label == "Soup"


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_loopback_is_never_reached_through_a_proxy(
    stub: StubApi, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, PROXY)
    for host in ("127.0.0.1", "localhost"):
        with Client(f"http://{host}:{stub.port}", tries=1) as client:
            assert client.predict(PHOTO).label == "Soup"


def test_other_addresses_may_be() -> None:
    own = ("http://127.3.2.1:80", "http://[::1]:80", "http://api.localhost")
    others = ("https://api.example", "http://192.0.2.1")
    assert [AsyncClient(url).uses_proxies for url in (*own, *others)] == [False] * 3 + [True] * 2
    assert not AsyncClient(others[0], trust_env=False).uses_proxies


def test_wrong_options_are_refused(client: Client) -> None:
    for url in ("127.0.0.1:8000", "ftp://x", "http://", "http://x/?a=1", ""):
        with pytest.raises(ValueError, match="must have the form"):
            Client(url)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("positive", {"tries": 0}),
        ("negative", {"backoff_s": -1}),
        ("'grpc' is not one of native, triton", {"protocol": "grpc"}),
    ]
    for words, options in wrong:
        with pytest.raises(ValueError, match=words):
            Client(**options)
    with pytest.raises(ValueError, match="cannot be sent"):
        client.predict(PHOTO, request_id="two\r\nlines")
    with pytest.raises(ValueError, match="concurrency"):
        next(client.predict_many([PHOTO], concurrency=0))


def test_the_model(stub: StubApi, client: Client, triton_stub: StubApi, triton: Client) -> None:
    described, configured = client.model(), triton.model()
    for model in (described, configured):
        assert (model.name, model.version, list(model.labels)) == ("food11", "1", LABELS)
    assert described.body == MODEL
    assert configured.body == {**MODEL, "backend": "python", "device": "cpu"}
    nonsense: list[Any] = [[], 7, None]
    for each_model in nonsense:
        stub.model = triton_stub.model = each_model
        for each in (client, triton):
            with pytest.raises(InvalidAnswerError):
                each.model()
    texts = [None, *({"string_value": text} for text in ("{", "[]", "[" * 100_000))]
    strange: list[Any] = [None, 3, {}, {"model.json": "x"}, *({"model.json": text} for text in texts)]
    for parameters in strange:
        triton_stub.model = {**config(), "parameters": parameters, "instance_group": []}
        model = triton.model()
        assert (model.name, model.version, model.labels) == ("food_classifier", "", ())
        assert model.body == {"name": "food_classifier", "backend": "python", "device": ""}


def test_readiness(stub: StubApi, client: Client, triton_stub: StubApi, triton: Client) -> None:
    assert client.ready()
    stub.ready = error(503, "unavailable", 1)
    readiness = client.ready()
    assert (readiness.ready, readiness.detail) == (False, "stub says unavailable")
    triton_stub.ready = Reply(200, b"")
    assert triton.ready()
    for status in (400, 404, 503):
        triton_stub.ready = failure(status, "Model version not ready")
        readiness = triton.ready()
        assert (readiness.ready, readiness.detail) == (False, "Model version not ready")
    triton_stub.ready = Reply(400, b"")
    assert triton.ready().detail == "the model is not ready"
    triton_stub.ready = failure(500, "out of order")
    with pytest.raises(ServerError):
        triton.ready()


@pytest.mark.parametrize("header", ["", "x", "decode;dur=x, queue", "decode;dur=1.2.3;;,,", ";dur=1"])
def test_strange_timings_are_nothing(header: str) -> None:
    assert Timing.parse(header) == Timing()


def test_nothing_of_the_service_is_imported() -> None:
    sources = Path(smallplates.client.__file__).parent.glob("*.py")
    text = "\n".join(source.read_text() for source in sources)
    assert text.count("from smallplates") == text.count("from smallplates.client") > 0
    assert "import smallplates" not in text
