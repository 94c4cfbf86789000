"""How the page asks the API: what it sends, and when it gives up.

test_routes.py has the errors. Connections and answers that are not as documented are the client's.
"""

import json
import math
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import SecretStr

from flask_app import tensor_model
from flask_app.api_client import Answer, ApiClient, Visit
from flask_app.app import create_app
from flask_app.errors import ApiAnswerError, ApiError
from flask_app.settings import Settings
from tests import pictures
from tests.browser.stub_api import LABELS, MODEL, Reply, StubApi, error, until
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


@pytest.mark.parametrize("channels", ["RGB", "BGR"])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    "size", [{"resize": 8, "center_crop": 6}, {"resize": [9, 5], "enlarge": [6, 6]}]
)
def test_the_page_prepares_photos_for_a_triton_that_only_takes_tensors(
    stub: StubApi, channels: str, activation: str, size: dict[str, Any]
) -> None:
    image = {**size, "mean": [0.5, 0.25, 0], "std": [0.5, 1, 2]}
    image |= {"channels": channels, "activation": activation}
    config = {
        "input": [{"name": "x", "dims": [3, 6, 6]}],
        "output": [{"name": "y", "dims": [2]}],
        "parameters": {"model.json": {"string_value": json.dumps({**MODEL, "image": image})}},
    }
    missing = failure(404, "Request for unknown model")
    stub.model = lambda path: Reply(200, config) if tensor_model.NAME in path else missing
    stub.ready = missing
    logits = [0.0] * len(LABELS)
    logits[LABELS.index("Soup")] = 2.0
    stub.usual = Reply(200, {"outputs": [{"name": "y", "data": logits}]})
    app = create_app(Settings(api_url=stub.url, api_protocol="triton"))
    with closing(app.extensions["api"]):
        page = app.test_client()
        assert page.get("/status").get_json()["state"] == "ready"
        orange = pictures.encode(Image.new("RGB", (12, 10), (255, 102, 0)), "PNG")
        answer = page.post("/classify", data=orange, headers={"Content-Type": "image/png"}).get_json()
    share = 1 / (1 + math.exp(-2)) if activation == "sigmoid" else math.exp(2) / (math.exp(2) + 10)
    assert answer["prediction"] == "Soup"
    assert answer["probability"] == pytest.approx(share)
    (asked,) = stub.asked
    assert asked.path == f"/v2/models/{tensor_model.NAME}/infer"
    length = int(asked.headers["Inference-Header-Content-Length"])
    assert json.loads(asked.body[:length])["inputs"][0]["shape"] == [1, 3, 6, 6]
    tensor = np.frombuffer(asked.body[length:], np.float32).reshape(3, 36)
    colours = [1, 0.4, 0] if channels == "RGB" else [0, 0.4, 1]
    wanted = (np.array(colours) - image["mean"]) / image["std"]
    np.testing.assert_allclose(tensor, np.repeat(wanted[:, None], 36, axis=1), atol=1e-5)


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
