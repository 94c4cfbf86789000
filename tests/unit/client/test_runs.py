"""`smallplates.client` on threads, event loops and in batches: cancelling, closing, waiting, order."""

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from smallplates.client import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    InvalidAnswerError,
    Photo,
    Prediction,
    UnreachableError,
)
from tests.browser.stub_api import Reply, StubApi, error, ok, until

PHOTO = b"\xff\xd8 a photo"


@pytest.fixture
def client(stub: StubApi) -> Iterator[Client]:
    with Client(stub.url, backoff_s=0.001, backoff_cap_s=0.001, tries=3) as made:
        yield made


def test_waiting_in_vain(stub: StubApi, client: Client) -> None:
    stub.ready = error(503, "draining")
    with pytest.raises(DeadlineExceededError, match="stub says draining"):
        client.wait_ready(2)
    stub.ready = Reply(500, b"")
    with pytest.raises(InvalidAnswerError):
        client.wait_ready(5)


def test_a_restart_is_waited_for(stub: StubApi) -> None:
    stub.down()
    with Client(stub.url, backoff_s=0.001, backoff_cap_s=0.01, tries=100_000) as client:
        patient = client.submit(PHOTO, timeout_s=300)
        with pytest.raises(UnreachableError):
            client.ready()
        stub.up()
        client.wait_ready()
        assert patient.result().tries > 1


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
    for _ in range(8):  # which end in the middle of its reading, by chance
        stub.answers.append(Reply(200, b" " * 5_000_000))
        with Client(stub.url) as client, pytest.raises(InvalidAnswerError):
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
