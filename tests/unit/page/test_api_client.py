"""How the page asks the API: what it sends, and when it gives up.

test_routes.py has the errors. Connections and answers that are not as documented are the client's.
"""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from pydantic import SecretStr

from flask_app.api_client import Answer, ApiClient, Visit
from flask_app.errors import ApiAnswerError, ApiError
from flask_app.settings import Settings
from tests.browser.stub_api import Reply, StubApi, error, until
from tests.triton_answers import failure

PHOTO = b"\xff\xd8 a photo"
VISIT = Visit("id-1")


@pytest.fixture
def client(stub: StubApi) -> Iterator[ApiClient]:
    settings = Settings(api_url=stub.url, api_key=SecretStr("k-1"))
    with closing(ApiClient(settings)) as made:
        yield made


def predict(client: ApiClient, visit: Visit = VISIT) -> Answer:
    return client.predict(PHOTO, visit, 5)


@pytest.mark.parametrize("seconds", [[0, 7], [60]])
def test_a_503_is_tried_again_once_if_that_is_soon(
    stub: StubApi, client: ApiClient, seconds: list[int]
) -> None:
    stub.answers.extend(error(503, "overloaded", each) for each in seconds)
    with pytest.raises(ApiAnswerError) as caught:
        predict(client)
    assert caught.value.headers["Retry-After"] == str(seconds[-1])
    assert caught.value.body()["request_id"] == "stub-1"
    assert len(stub.asked) == len(seconds)


@pytest.mark.parametrize("status", [400, 404])
def test_a_photo_that_triton_refuses_or_a_model_that_is_not_there(stub: StubApi, status: int) -> None:
    """The rest of that protocol is in tests/e2e/test_page_triton.py."""
    stub.usual, stub.ready = failure(status, "not a JPEG"), Reply(200, b"")
    with closing(ApiClient(Settings(api_url=stub.url, api_protocol="triton"))) as triton:
        for expected in ((status, "invalid_image"), (503, "unavailable")):
            with pytest.raises(ApiError) as caught:
                predict(triton)
            assert (caught.value.status, caught.value.code) == expected
            stub.ready = failure(status, "Request for unknown model")


def test_too_slow(stub: StubApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_app.api_client.TIMEOUT_GRACE_S", 0.5)
    stub.held.clear()
    settings = Settings(api_url=stub.url, request_timeout_s=0.5)
    with closing(ApiClient(settings)) as client, pytest.raises(ApiError) as caught:
        predict(client)
    assert caught.value.code == "api_timeout"
    assert 0 < int(stub.asked[0].headers["X-Request-Timeout-Ms"]) <= 500  # what is left of it
    until(lambda: stub.left == 1, "the API to see the client leave")


def test_cancelled_by_a_browser_that_left(stub: StubApi, client: ApiClient) -> None:
    """Before the start, during the pause between two tries, and while the API works."""

    def cancelled(left: bool = False) -> None:
        def client_left() -> bool:
            return left or (bool(stub.asked) and stub.inside == int(not stub.held.is_set()))

        with pytest.raises(ApiError) as caught:
            predict(client, Visit("id-1", client_left=client_left))
        assert caught.value.code == "cancelled"

    cancelled(left=True)
    assert not stub.asked
    stub.answers.append(error(503, "overloaded", 1))
    cancelled()
    assert len(stub.asked) == 1
    stub.held.clear()
    cancelled()
    until(lambda: stub.left == 1, "the API to see the client leave")


def test_one_call_that_is_cancelled_spares_the_other(stub: StubApi, client: ApiClient) -> None:
    stub.held.clear()
    answers = []
    other = threading.Thread(target=lambda: answers.append(predict(client)))
    other.start()
    until(lambda: stub.inside == 1, "the first request")
    with pytest.raises(ApiError):
        predict(client, Visit("id-2", client_left=lambda: stub.inside == 2))
    stub.held.set()
    other.join()
    assert answers[0].body["prediction"] == "Soup"
