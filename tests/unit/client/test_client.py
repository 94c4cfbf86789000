"""`smallplates.client` against a real server that misbehaves as commanded."""

import asyncio
import base64
import gc
import io
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

import smallplates.client
from smallplates.client import AsyncClient, Client, Photo, Prediction, Score, Span, Timing
from tests.browser.stub_api import LABELS, MODEL, Reply, StubApi, error, ok, until

PHOTO = b"\xff\xd8 a photo"
PROXY = "http://127.0.0.1:9"  # nobody listens there


@pytest.fixture
def client(stub: StubApi) -> Iterator[Client]:
    with Client(stub.url, backoff_s=0.001, backoff_cap_s=0.001, tries=3) as made:
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
    assert "Authorization" not in asked.headers
    assert "X-Priority" not in asked.headers


def test_every_option_is_sent(stub: StubApi) -> None:
    with Client(f"{stub.url}/", api_key="k-1") as client:
        prediction = client.predict(
            PHOTO, top_k=5, timeout_s=1.1, priority="bulk", base64=True, request_id="r-1"
        )
    assert len(prediction.top) == 5
    assert prediction.request_id == "r-1"
    asked = stub.asked[0]
    assert asked.path == "/predict?top_k=5"
    assert asked.body == {"image": base64.b64encode(PHOTO).decode()}
    assert asked.headers["Authorization"] == "Bearer k-1"
    assert asked.headers["X-Priority"] == "bulk"
    assert asked.headers["X-Request-ID"] == "r-1"
    assert 500 <= int(asked.headers["X-Request-Timeout-Ms"]) <= 1000
    assert "k-1" not in repr(client)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, io.BytesIO])
def test_bytes_of_every_kind(stub: StubApi, client: Client, kind: type) -> None:
    client.predict(kind(PHOTO))
    assert stub.asked[0].photo == PHOTO


def test_paths_and_files(stub: StubApi, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(PHOTO)
    client.predict(path)
    client.predict(str(path))
    with path.open("rb") as file:
        client.predict(file)
    assert [asked.photo for asked in stub.asked] == [PHOTO] * 3


def test_texts(stub: StubApi, client: Client) -> None:
    assert client.classify_text("warm \u00e9", "cold", top_k=5).top[0] == Score("Soup", 0.924)
    assert client.classify_text("\ud83d").label == "Soup"  # what is no text is the service's to refuse
    first, second = stub.asked
    assert (first.path, first.body) == ("/predict?top_k=5", {"text": "warm \u00e9", "text_pair": "cold"})
    assert second.body == {"text": "\ud83d"}
    assert first.headers["Content-Type"] == "application/json"


def test_questions(stub: StubApi, client: Client) -> None:
    best, other = Span("two", 0.75, 4, 7), Span("", 0.25, 0, 0)
    body = {**vars(best), "top": [vars(best), vars(other)]}
    stub.answers += [Reply(200, body), Reply(200, body)]
    answer = client.answer("How many?", "The two.", top_k=2, allow_no_answer=True, priority="bulk")
    assert (answer.answer, answer.start, answer.top) == ("two", 4, (best, other))
    assert client.answer("How many?", "The two.").top == (best,)
    asked = {"question": "How many?", "context": "The two."}
    assert [request.body for request in stub.asked] == [{**asked, "allow_no_answer": True}, asked]
    assert stub.asked[0].headers["X-Priority"] == "bulk"


@pytest.mark.parametrize(
    "changed",
    [
        {"start": -1},
        {"end": 3},
        {"start": True},
        {"score": -0.1},
        {"score": "1"},
        {"answer": None},
        {"top": [{}]},
    ],
)
def test_answers_that_are_none(stub: StubApi, client: Client, changed: dict[str, object]) -> None:
    best = {"answer": "two", "score": 0.75, "start": 4, "end": 7}
    stub.answers.append(Reply(200, {**best, "top": [best], **changed}))
    with pytest.raises(smallplates.client.InvalidAnswerError):
        client.answer("How many?", "The two.", top_k=1)


def test_any_fields(stub: StubApi, client: Client) -> None:
    answer = client.call({"text": ["warm", "cold"]}, top_k=2, priority="bulk")
    assert (answer.body["prediction"], answer.timing.total_ms) == ("Soup", 9.6)
    assert stub.asked[0].path == "/predict?top_k=2"
    stub.answers += [Reply(200, [{"prediction": "a"}]), Reply(200, 7), error(422, "invalid_request")]
    assert [client.call({}).body for _ in range(2)] == [[{"prediction": "a"}], 7]
    with pytest.raises(smallplates.client.RequestRefusedError):
        client.call({})


def test_only_photos_go_to_triton(stub: StubApi) -> None:
    with Client(stub.url, protocol="triton") as client, pytest.raises(ValueError, match="only photos"):
        client.classify_text("warm")


def test_what_cannot_be_read_is_not_sent(stub: StubApi, client: Client, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    closed = io.BytesIO()
    closed.close()
    with (tmp_path / "text").open() as text:
        for photo in (tmp_path / "missing", tmp_path, closed, text, "\0"):
            with pytest.raises(smallplates.client.UnreadablePhotoError):
                client.predict(photo)  # type: ignore[arg-type]  # a text file is the caller's mistake
    assert not stub.asked


def test_a_503_with_retry_after_is_tried_again(stub: StubApi, client: Client) -> None:
    stub.answers.extend([error(503, "overloaded", 0), error(503, "draining", 0)])
    assert client.predict(PHOTO).tries == 3
    assert len({asked.headers["X-Request-ID"] for asked in stub.asked}) == 1
    assert [asked.photo for asked in stub.asked] == [PHOTO] * 3


def test_the_last_error_is_raised(stub: StubApi, client: Client) -> None:
    stub.answers.extend([error(503, "overloaded", 0)] * 3)
    with pytest.raises(smallplates.client.ServiceUnavailableError) as caught:
        client.predict(PHOTO)
    assert (caught.value.status, caught.value.code) == (503, "overloaded")
    assert caught.value.retryable
    assert caught.value.retry_after_s == 0
    assert len(stub.asked) == 3


@pytest.mark.parametrize("retry_after", [11, None])
def test_a_503_is_not_waited_for_too_long(
    stub: StubApi, client: Client, retry_after: int | None
) -> None:
    stub.answers.append(error(503, "overloaded", retry_after))
    with pytest.raises(smallplates.client.ServiceUnavailableError):
        client.predict(PHOTO)
    assert len(stub.asked) == 1


def test_no_pause_goes_beyond_the_budget(stub: StubApi, client: Client) -> None:
    stub.answers.append(error(503, "overloaded", 9))
    with pytest.raises(smallplates.client.ServiceUnavailableError):
        client.predict(PHOTO, timeout_s=5)
    assert len(stub.asked) == 1


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        (error(400, "invalid_image"), smallplates.client.RequestRefusedError, "invalid_image"),
        (error(401, "unauthorized"), smallplates.client.UnauthorizedError, "unauthorized"),
        (error(413, "image_too_large"), smallplates.client.RequestRefusedError, "image_too_large"),
        (error(500, "internal_error"), smallplates.client.ServerError, "internal_error"),
        (error(500, "worker_crashed"), smallplates.client.ServerError, "worker_crashed"),
        (error(504, "deadline_exceeded"), smallplates.client.DeadlineExceededError, "deadline_exceeded"),
        (Reply(502, b"<html>"), smallplates.client.UnreachableError, "unreachable"),
        (Reply(429, b"<html>"), smallplates.client.ServiceUnavailableError, "unavailable"),
        (Reply(404, b"<html>"), smallplates.client.InvalidAnswerError, "invalid_answer"),
        (Reply(302, b"", {"Location": PROXY}), smallplates.client.InvalidAnswerError, "invalid_answer"),
        (Reply(200, b"<html>"), smallplates.client.InvalidAnswerError, "invalid_answer"),
        (Reply(200, b"[" * 100_000), smallplates.client.InvalidAnswerError, "invalid_answer"),
        (Reply(200, []), smallplates.client.InvalidAnswerError, "invalid_answer"),
        (Reply(200, {"prediction": "Soup"}), smallplates.client.InvalidAnswerError, "invalid_answer"),
        (
            Reply(200, {"prediction": "Soup", "probability": 7}),
            smallplates.client.InvalidAnswerError,
            "invalid_answer",
        ),
        (
            Reply(200, {"prediction": 1, "probability": 0.5}),
            smallplates.client.InvalidAnswerError,
            "invalid_answer",
        ),
        (
            Reply(200, {"prediction": "Soup", "probability": True}),
            smallplates.client.InvalidAnswerError,
            "invalid_answer",
        ),
        (Reply(200, b" " * 5_000_000), smallplates.client.InvalidAnswerError, "invalid_answer"),
    ],
)
def test_other_errors_are_final(
    stub: StubApi,
    client: Client,
    reply: Reply,
    kind: type[smallplates.client.ServingClientError],
    code: str,
) -> None:
    stub.answers.append(reply)
    with pytest.raises(kind) as caught:
        client.predict(PHOTO)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code) == (reply.status, code)
    assert not caught.value.retryable
    assert len(stub.asked) == 1


def test_an_error_says_what_it_knows(stub: StubApi, client: Client) -> None:
    stub.answers.append(error(400, "invalid_image"))
    with pytest.raises(smallplates.client.ServingClientError) as caught:
        client.predict(PHOTO, request_id="r-2")
    assert str(caught.value) == "stub says invalid_image (400 invalid_image, request r-2)"
    assert caught.value.body["request_id"] == "stub-1"


def test_a_ranking_that_was_asked_for_must_come(stub: StubApi, client: Client) -> None:
    tops: list[object] = [None, [], [{"label": "Rice", "probability": 0.1}], {}, [1]]
    for top in tops:
        stub.answers.append(Reply(200, {"prediction": "Soup", "probability": 0.9, "top": top}))
        with pytest.raises(smallplates.client.InvalidAnswerError):
            client.predict(PHOTO, top_k=2)


def test_nobody_listens(stub: StubApi, client: Client) -> None:
    stub.down()
    with pytest.raises(smallplates.client.UnreachableError) as caught:
        client.predict(PHOTO, request_id="r-3")
    assert caught.value.retryable
    assert (caught.value.status, caught.value.request_id) == (None, "r-3")
    with pytest.raises(smallplates.client.UnreachableError):
        client.ready()
    with pytest.raises(smallplates.client.UnreachableError):
        client.model()


def test_the_budget_is_for_everything(stub: StubApi, client: Client) -> None:
    stub.held.clear()
    with pytest.raises(smallplates.client.DeadlineExceededError) as caught:
        client.predict(PHOTO, timeout_s=0.2)
    assert caught.value.status is None
    assert 100 <= int(stub.asked[0].headers["X-Request-Timeout-Ms"]) <= 200
    until(lambda: stub.left == 1, "the service to see its client leave")


def test_a_cancelled_call_leaves(stub: StubApi, client: Client) -> None:
    stub.held.clear()
    future = client.submit(PHOTO)
    until(lambda: stub.inside == 1, "the request")
    assert future.cancel()
    until(lambda: stub.left == 1, "the service to see its client leave")
    with pytest.raises(CancelledError):
        future.result()


def test_connections_are_kept(stub: StubApi, client: Client) -> None:
    for _ in range(20):
        client.predict(PHOTO)
    assert stub.connections == 1


def test_a_broken_idle_connection_is_replaced(stub: StubApi, client: Client) -> None:
    client.predict(PHOTO)
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


@pytest.mark.parametrize(
    ("url", "through"),
    [
        ("http://127.3.2.1:80", False),
        ("http://[::1]:80", False),
        ("http://api.localhost", False),
        ("https://api.example", True),
        ("http://192.0.2.1", True),
    ],
)
def test_other_addresses_may_be(url: str, through: bool) -> None:
    assert AsyncClient(url).uses_proxies is through
    assert AsyncClient(url, trust_env=False).uses_proxies is False


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x/?a=1", ""])
def test_wrong_urls_are_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="must have the form"):
        Client(url)


def test_wrong_options_are_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="positive"):
        Client(tries=0)
    with pytest.raises(ValueError, match="negative"):
        Client(backoff_s=-1)
    with pytest.raises(ValueError, match="cannot be sent"):
        client.predict(PHOTO, request_id="two\r\nlines")
    with pytest.raises(ValueError, match="concurrency"):
        next(client.predict_many([PHOTO], concurrency=0))


def test_the_model(stub: StubApi, client: Client) -> None:
    model = client.model()
    assert (model.name, model.version, list(model.labels)) == ("food11", "1", LABELS)
    assert model.body == MODEL
    for wrong in ("[]", "7", "null"):
        stub.model = json.loads(wrong)
        with pytest.raises(smallplates.client.InvalidAnswerError):
            client.model()


def test_models_by_name(stub: StubApi, client: Client) -> None:
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
    assert client.model("a-1").name == "/model/a-1"
    assert client.model().name == "/model"


def test_readiness(stub: StubApi, client: Client) -> None:
    assert client.ready()
    stub.ready = error(503, "unavailable", 1)
    readiness = client.ready()
    assert not readiness
    assert readiness.detail == "stub says unavailable"


def test_waiting_for_a_service_that_starts(stub: StubApi, client: Client) -> None:
    stub.down()
    waiting = threading.Thread(target=client.wait_ready)
    waiting.start()
    stub.ready = error(503, "unavailable")
    stub.up()
    until(lambda: stub.connections, "a look at the service")
    assert waiting.is_alive()
    stub.ready = Reply(200, {"status": "ready"})
    waiting.join(20)
    assert not waiting.is_alive()


def test_waiting_in_vain(stub: StubApi, client: Client) -> None:
    stub.ready = error(503, "draining")
    with pytest.raises(smallplates.client.DeadlineExceededError, match="stub says draining"):
        client.wait_ready(0.2)
    stub.ready = Reply(500, b"")
    with pytest.raises(smallplates.client.InvalidAnswerError):
        client.wait_ready(5)


def test_a_closed_client_says_so(stub: StubApi) -> None:
    client = Client(stub.url)
    client.predict(PHOTO)
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.predict(PHOTO)
    never_used = Client(stub.url)
    never_used.close()
    with pytest.raises(RuntimeError, match="closed"):
        never_used.ready()


def test_closing_ends_what_waits(stub: StubApi) -> None:
    stub.held.clear()
    with Client(stub.url) as client:
        future = client.submit(PHOTO)
        until(lambda: stub.inside == 1, "the request")
    with pytest.raises(CancelledError):
        future.result()


def test_closing_ends_what_is_left_of_an_answer_that_is_too_long(
    stub: StubApi, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):  # which end in the middle of its reading, by chance
        stub.answers.append(Reply(200, b" " * 5_000_000))
        with Client(stub.url) as client, pytest.raises(smallplates.client.InvalidAnswerError):
            client.predict(PHOTO)
        gc.collect()
    assert not caplog.records


def test_a_forgotten_client_ends_its_thread(stub: StubApi) -> None:
    before = threading.active_count()
    client = Client(stub.url)
    assert client.predict(PHOTO).label == "Soup"
    del client
    until(lambda: threading.active_count() <= before + 1, "the client's thread to end")
    assert not [thread for thread in threading.enumerate() if thread.name == "serving client"]


def test_a_forked_child_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.predict(PHOTO)
    here = os.getpid()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: here + 1)
        with pytest.raises(RuntimeError, match="another process"):
            client.predict(PHOTO)
    assert client.predict(PHOTO).label == "Soup"


def test_a_date_in_retry_after(stub: StubApi, client: Client) -> None:
    past = {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}
    stub.answers.append(Reply(503, b"<html>", past))
    assert client.predict(PHOTO).tries == 2
    stub.answers.append(Reply(503, b"<html>", {"Retry-After": "soon"}))
    with pytest.raises(smallplates.client.ServiceUnavailableError):
        client.predict(PHOTO)


@pytest.mark.parametrize("header", ["", "x", "decode;dur=x, queue", "decode;dur=1.2.3;;,,", ";dur=1"])
def test_strange_timings_are_nothing(header: str) -> None:
    assert Timing.parse(header) == Timing()


def test_the_asyncio_client(stub: StubApi) -> None:
    async def main() -> list[Prediction]:
        async with AsyncClient(stub.url, backoff_s=0.001) as client:
            stub.answers.append(error(503, "overloaded", 0))
            await client.wait_ready()
            assert (await client.model()).name == "food11"
            with Client(stub.url) as beside:  # in a running loop, as in a notebook
                first = beside.predict(PHOTO)
            return [first, *await asyncio.gather(*(client.predict(PHOTO) for _ in range(5)))]

    predictions = asyncio.run(main())
    assert {prediction.label for prediction in predictions} == {"Soup"}
    assert sum(prediction.tries for prediction in predictions) == 7


def labels(*wanted: str) -> list[Reply]:
    return [ok({label: 1.0}) for label in wanted]


def test_a_batch_goes_on_past_failures(stub: StubApi, client: Client, tmp_path: Path) -> None:
    stub.answers.extend([*labels("Soup"), error(400, "invalid_image"), *labels("Rice")])
    photos: list[Photo] = [PHOTO, PHOTO, tmp_path / "missing", PHOTO]
    items = list(client.predict_many(photos, concurrency=1))
    assert [item.index for item in items] == [0, 1, 2, 3]
    assert [item.photo for item in items] == photos
    assert [item.prediction and item.prediction.label for item in items] == ["Soup", None, None, "Rice"]
    assert [item.error and item.error.code for item in items] == [
        None,
        "invalid_image",
        "unreadable_photo",
        None,
    ]


def test_a_batch_is_bounded_and_lazy(stub: StubApi, client: Client) -> None:
    taken = []

    def photos() -> Iterator[bytes]:
        for index in range(12):
            taken.append(index)
            yield PHOTO

    stub.held.clear()
    items = client.predict_many(photos(), concurrency=3)
    first = threading.Thread(target=lambda: next(items))
    first.start()
    until(lambda: stub.inside == 3, "three requests at the same time")
    assert len(taken) == 3
    stub.held.set()
    first.join()
    assert len(list(items)) == 11
    assert stub.most_inside == 3
    assert len(stub.asked) == 12


def test_a_batch_as_it_finishes(stub: StubApi, client: Client, tmp_path: Path) -> None:
    pipe = tmp_path / "slow"
    os.mkfifo(pipe)
    items = client.predict_many([pipe, PHOTO, PHOTO], concurrency=2, in_order=False)
    assert {next(items).index, next(items).index} == {1, 2}
    pipe.write_bytes(PHOTO)
    assert next(items).index == 0
    assert len(stub.asked) == 3


def test_leaving_a_batch_early_cancels_the_rest(stub: StubApi, client: Client) -> None:
    items = client.predict_many([PHOTO] * 9, concurrency=2)
    next(items)
    until(lambda: len(stub.asked) == 2 and not stub.inside, "the second answer")
    stub.held.clear()
    next(items)
    until(lambda: stub.inside == 1, "the next request")
    items.close()
    until(lambda: stub.left == 1, "the service to see its client leave")


def test_an_asyncio_batch(stub: StubApi) -> None:
    async def photos() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield PHOTO

    async def main() -> list[int]:
        async with AsyncClient(stub.url) as client:
            ordered = [item.index async for item in client.predict_many(photos(), concurrency=2)]
            async for item in client.predict_many([PHOTO] * 3, concurrency=2, in_order=False):
                assert item.prediction is not None
            with pytest.raises(ValueError, match="concurrency"):
                await anext(client.predict_many([], concurrency=0))
            return ordered

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]
    assert stub.most_inside <= 2


def test_nothing_of_the_service_is_imported() -> None:
    sources = Path(smallplates.client.__file__).parent.glob("*.py")
    text = "\n".join(source.read_text() for source in sources)
    assert text.count("from smallplates") == text.count("from smallplates.client") > 0
    assert "import smallplates" not in text
