"""Client of the API, tested against a real server that misbehaves on command."""

import base64
import threading
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from flask_app.api_client import ApiClient
from flask_app.errors import (
    ApiAnswerError,
    ApiCancelledError,
    ApiError,
    ApiGarbageError,
    ApiTimeoutError,
    ApiUnreachableError,
)
from flask_app.settings import Settings
from tests.browser.stub_api import TIMES, Reply, StubApi, error, ok, until

PHOTO = b"\xff\xd8 a photo"


@pytest.fixture
def client(stub: StubApi) -> Iterator[ApiClient]:
    with ApiClient(Settings(api_url=stub.url)) as made:
        yield made


def test_the_photo_goes_as_base64_json(stub: StubApi, client: ApiClient) -> None:
    answer = client.predict(PHOTO, "id-1")
    assert answer.top[0] == ("Soup", 0.924)
    assert answer.headers == {"Server-Timing": TIMES, "X-Request-ID": "id-1"}
    assert stub.asked[0].path == "/predict?top_k=5"
    assert stub.asked[0].body == {"image": base64.b64encode(PHOTO).decode()}
    assert "Authorization" not in stub.asked[0].headers


def test_the_key_is_sent(stub: StubApi) -> None:
    with ApiClient(Settings(api_url=stub.url, api_key=SecretStr("k-1"))) as client:
        client.predict(PHOTO)
    assert stub.asked[0].headers["Authorization"] == "Bearer k-1"


def test_a_short_503_is_tried_again_once(stub: StubApi, client: ApiClient) -> None:
    stub.answers.extend([error(503, "overloaded", 0)])
    assert client.predict(PHOTO).top[0][0] == "Soup"
    assert len(stub.asked) == 2


def test_a_second_503_is_passed_on(stub: StubApi, client: ApiClient) -> None:
    stub.answers.extend([error(503, "overloaded", 0), error(503, "overloaded", 7)])
    with pytest.raises(ApiAnswerError) as caught:
        client.predict(PHOTO)
    assert (caught.value.status, caught.value.code) == (503, "overloaded")
    assert caught.value.headers["Retry-After"] == "7"
    assert len(stub.asked) == 2


@pytest.mark.parametrize("retry_after", [60, None])
def test_a_long_503_is_not_waited_for(stub: StubApi, client: ApiClient, retry_after: int | None) -> None:
    stub.answers.append(error(503, "overloaded", retry_after))
    with pytest.raises(ApiAnswerError):
        client.predict(PHOTO)
    assert len(stub.asked) == 1


def test_other_errors_are_passed_on(stub: StubApi, client: ApiClient) -> None:
    stub.answers.append(error(400, "invalid_image"))
    with pytest.raises(ApiAnswerError, match="stub says invalid_image") as caught:
        client.predict(PHOTO)
    assert caught.value.body()["request_id"] == "stub-1"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, b"<html>"),
        Reply(200, []),
        Reply(200, {"prediction": "Soup", "probability": 0.9}),
        Reply(200, {"top": []}),
        Reply(200, {"top": [{"label": "Soup", "probability": "high"}]}),
        Reply(200, {"top": [{"label": "Soup", "probability": 7}]}),
        Reply(404, b"<html>"),
        Reply(302, None, {"Location": "http://127.0.0.1:1/"}),
        Reply(200, b" " * 2_000_000),
    ],
)
def test_garbage(stub: StubApi, client: ApiClient, reply: Reply) -> None:
    stub.answers.append(reply)
    with pytest.raises(ApiGarbageError):
        client.predict(PHOTO)


def test_a_proxy_without_its_api_is_unreachable(stub: StubApi, client: ApiClient) -> None:
    stub.answers.append(Reply(502, b"<html>bad gateway"))
    with pytest.raises(ApiUnreachableError):
        client.predict(PHOTO)


def test_down(stub: StubApi, client: ApiClient) -> None:
    stub.down()
    with pytest.raises(ApiUnreachableError):
        client.predict(PHOTO)
    with pytest.raises(ApiUnreachableError):
        client.not_ready()
    with pytest.raises(ApiError):
        client.model()


def test_an_idle_connection_that_broke_is_replaced(stub: StubApi, client: ApiClient) -> None:
    client.predict(PHOTO)
    stub.down()
    stub.up()
    assert client.predict(PHOTO).top[0][0] == "Soup"


def test_too_slow(stub: StubApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_app.api_client.TIMEOUT_GRACE_S", 0.5)
    stub.held.clear()
    with (
        ApiClient(Settings(api_url=stub.url, request_timeout_s=0.5)) as client,
        pytest.raises(ApiTimeoutError),
    ):
        client.predict(PHOTO)
    assert stub.asked[0].headers["X-Request-Timeout-Ms"] == "500"
    until(lambda: stub.left == 1, "the API to see the client leave")


def test_cancelled_by_a_browser_that_left(stub: StubApi, client: ApiClient) -> None:
    stub.held.clear()
    with pytest.raises(ApiCancelledError):
        client.predict(PHOTO, client_left=lambda: stub.inside == 1)
    until(lambda: stub.left == 1, "the API to see the client leave")
    stub.held.set()
    assert client.predict(PHOTO).top[0][0] == "Soup"


def test_cancelled_before_it_starts(stub: StubApi, client: ApiClient) -> None:
    with pytest.raises(ApiCancelledError):
        client.predict(PHOTO, client_left=lambda: True)
    assert not stub.asked


def test_cancelled_during_the_pause(stub: StubApi, client: ApiClient) -> None:
    stub.answers.append(error(503, "overloaded", 1))
    with pytest.raises(ApiCancelledError):
        client.predict(PHOTO, client_left=lambda: bool(stub.asked) and not stub.inside)
    assert len(stub.asked) == 1


def test_one_call_that_is_cancelled_spares_the_other(stub: StubApi, client: ApiClient) -> None:
    stub.held.clear()
    answers = []
    other = threading.Thread(target=lambda: answers.append(client.predict(PHOTO)))
    other.start()
    until(lambda: stub.inside == 1, "the first request")
    with pytest.raises(ApiCancelledError):
        client.predict(PHOTO, client_left=lambda: stub.inside == 2)
    stub.held.set()
    other.join()
    assert answers[0].top[0][0] == "Soup"


def test_readiness(stub: StubApi, client: ApiClient) -> None:
    assert client.not_ready() is None
    stub.ready = error(503, "unavailable")
    assert client.not_ready() == "stub says unavailable"
    stub.ready = Reply(500, b"")
    with pytest.raises(ApiGarbageError):
        client.not_ready()


def test_fifty_answers_one_connection(stub: StubApi, client: ApiClient) -> None:
    stub.usual = ok({"Rice": 1.0})
    for _ in range(50):
        assert client.predict(PHOTO).top == (("Rice", 1.0),)
    assert stub.connections == 1
