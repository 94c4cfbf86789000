"""Time limits of requests, and clients that disconnect before the answer, without a connection."""

import asyncio
import gzip
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from smallplates.errors import DrainingError, InvalidRequestError, OverloadedError
from smallplates.settings import Settings
from smallplates.web.api.pipeline import (
    NO_TIME,
    SKIMMED_BYTES,
    Call,
    Pipeline,
    Target,
    parse_timeout,
    unless_disconnected,
)
from smallplates.web.http.body import LARGE, Body
from smallplates.web.http.request_context import RequestContext, record
from smallplates.web.inference.served_model import Answer, RequestOptions
from smallplates.web.inference.thread_pool import ThreadPool

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, 5000), ("1", 1), ("0004999", 4999), ("5001", 5000), ("9" * 20, 5000), ("9" * 60_000, 5000)],
)
def test_longer_time_limits_are_cut(text: str | None, expected: int) -> None:
    assert parse_timeout(text, 5000) == expected


@pytest.mark.parametrize(
    "text",
    ["", "0", "000", "-1", "+1", "1.5", "1e3", " 1", "1, 2", "soon", "inf", "nan", "\u0663", "\u00b2"],
)
def test_unreadable_time_limits_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="X-Request-Timeout-Ms"):
        parse_timeout(text, 5000)


class Client:
    """The client's side of one request; the server tells of its disconnect in one of two ways."""

    def __init__(self, tells_at_once: bool, body: bytes = b"") -> None:
        self.body = body
        self.work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.disconnected: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}
        scope |= {"context": RequestContext("id")}  # Any: ASGI's
        scope |= {"disconnect": self.disconnected} if tells_at_once else {}
        self.request = Request(scope, self.receive)

    async def receive(self) -> dict[str, Any]:  # Any: ASGI's message
        if body := self.body:
            self.body = b""
            return {"type": "http.request", "body": body}
        await asyncio.shield(self.disconnected)
        return {"type": "http.disconnect"}

    def disconnect(self) -> None:
        self.disconnected.set_result(None)


@pytest.fixture(params=[True, False], ids=["HttpProtocol", "another server"])
async def client(request: pytest.FixtureRequest) -> Client:
    """Returns a client of our own server or of another one."""
    return Client(request.param)


@pytest.mark.parametrize("has_gone", [True, False])
async def test_work_for_nobody_is_cancelled(client: Client, has_gone: bool) -> None:
    if has_gone:
        client.disconnect()
    else:
        asyncio.get_running_loop().call_soon(client.disconnect)
    with pytest.raises(ClientDisconnect):
        await unless_disconnected(client.request, client.work)
    assert client.work.cancelled()
    await asyncio.sleep(0)  # the task itself goes on


async def test_a_disconnect_in_the_same_moment_as_the_answer_cancels_nothing_else(
    client: Client,
) -> None:
    def answer_and_disconnect() -> None:
        client.work.set_result("answer")
        client.disconnect()

    asyncio.get_running_loop().call_soon(answer_and_disconnect)
    assert await unless_disconnected(client.request, client.work) == "answer"
    for _ in range(3):
        await asyncio.sleep(0)


async def test_other_reasons_to_cancel_are_passed_on(client: Client) -> None:
    task = asyncio.ensure_future(unless_disconnected(client.request, client.work))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not client.disconnected.cancelled()


def respond(_: Answer, __: RequestContext) -> Response:
    """Returns which thread has made the response."""
    return Response(threading.current_thread().name)


@pytest.fixture
def model() -> MagicMock:
    model = MagicMock(predict=AsyncMock(return_value=Answer(MagicMock(), [], [], NO_TIME)))
    model.admit().__aexit__.return_value = False
    return model


@pytest.mark.parametrize("known", [True, False], ids=["in the path", "in the body"])
async def test_only_requests_after_the_beginning_of_a_drain_are_refused(
    model: MagicMock, known: bool
) -> None:
    service = MagicMock(settings=Settings())
    pipeline, target = Pipeline(service), Target(model, lambda _: Call(respond=respond))
    find: Any = target if known else lambda _: target
    admitted, late = Client(True), Client(True, b"body")

    async def receive() -> dict[str, Any]:
        service.check_accepting.side_effect = DrainingError("draining")
        return {"type": "http.request", "body": b"body"}

    await pipeline.http(Request(admitted.request.scope, receive), find)
    with pytest.raises(DrainingError):
        await pipeline.http(late.request, find)
    assert late.body == b"body"
    assert model.predict.call_count == 1
    assert model.refuse_if_full.called is known


async def test_a_client_that_leaves_while_its_body_is_decoded(model: MagicMock) -> None:
    gate, begun = threading.Event(), threading.Event()
    threads, client = ThreadPool(1), Client(True, b"a")

    def decode(_: bytes) -> Call:
        begun.set()
        assert gate.wait(60)
        return Call()

    threads.start()
    pipeline = Pipeline(MagicMock(settings=Settings(), threads=threads))
    answering = pipeline.http(client.request, Target(model, decode, inline_bytes=0))
    task = asyncio.ensure_future(answering)
    assert await asyncio.to_thread(begun.wait, 20)
    client.disconnect()
    try:
        with pytest.raises(ClientDisconnect):
            await task
        assert pipeline.reader.buffered == 0
    finally:
        gate.set()
        threads.close()
    assert not model.predict.called


@pytest.fixture
def service() -> MagicMock:
    """A service whose threads are only counted."""

    async def run(work: Callable[[], Any], _: bool) -> Any:  # of any type
        return work()

    return MagicMock(settings=Settings(), threads=MagicMock(run=AsyncMock(side_effect=run)))


@pytest.mark.parametrize("coding", [None, "gzip"])
async def test_a_body_that_is_large_is_searched_for_its_model_on_a_thread(
    service: MagicMock, model: MagicMock, coding: str | None
) -> None:
    pipeline, target = Pipeline(service), Target(model, lambda _: Call(), inline_bytes=None)
    content = bytes(SKIMMED_BYTES + 1)
    with Body(pipeline.reader, coding, gzip.compress(content) if coding else content) as body:
        body.hold(len(body.content))
        await pipeline.answer(RequestContext("id"), RequestOptions(1000), lambda _: target, body)
    service.threads.run.assert_awaited_once()


async def test_a_large_answer_counts_until_the_request_is_recorded(
    service: MagicMock, model: MagicMock
) -> None:
    async def predict(*arguments: Any) -> MagicMock:
        arguments[-1].slots.hold(LARGE + 1)
        return MagicMock()

    model.predict.side_effect = predict
    pipeline, context = Pipeline(service), RequestContext("id", status=200)
    with Body(pipeline.reader, content=b"body") as body:
        target = Target(model, lambda _: Call())
        await pipeline.answer(context, RequestOptions(1000), target, body)
    assert (pipeline.answers.buffered, pipeline.reader.buffered) == (LARGE + 1, 0)
    record(service.metrics, context, "/predict", timed=False)
    assert pipeline.answers.buffered == 0


async def test_a_model_that_is_replaced_while_a_thread_finds_it_is_not_called(
    service: MagicMock, model: MagicMock
) -> None:
    replaced = MagicMock()

    def find(_: bytes) -> Target[Call]:
        found = service.models["model"]
        if found is replaced:
            service.models = {"model": model}
        return Target(found, lambda _: Call(), inline_bytes=None)

    service.models = {"model": replaced}
    pipeline = Pipeline(service)
    with Body(pipeline.reader, content=bytes(SKIMMED_BYTES + 1)) as body:
        body.hold(len(body.content))
        await pipeline.answer(RequestContext("id"), RequestOptions(1000), find, body)
    assert not replaced.__enter__.called
    model.predict.assert_awaited_once()


@pytest.mark.parametrize("is_large", [False, True])
async def test_large_answers_are_formatted_on_a_thread(model: MagicMock, is_large: bool) -> None:
    model.predict.return_value = Answer(MagicMock(), [], [], NO_TIME, is_large)
    threads = ThreadPool(1)
    threads.start()
    pipeline = Pipeline(MagicMock(settings=Settings(), threads=threads))
    try:
        target = Target(model, lambda _: Call(respond=respond))
        response = await pipeline.http(Client(True, b"a").request, target)
    finally:
        threads.close()
    assert (response.body == threading.main_thread().name.encode()) is not is_large


async def test_what_needs_no_worker_is_admitted_like_a_call(
    service: MagicMock, model: MagicMock
) -> None:
    call = Call(needs_worker=False, respond=respond)
    model.admit.reset_mock()
    response = await Pipeline(service).http(Client(True, b"a").request, Target(model, lambda _: call))
    assert response.status_code == 200
    model.admit.assert_called_once()
    model.refuse_if_full.assert_called_once()
    assert not model.predict.called


async def test_a_full_model_refuses_before_the_body_that_could_name_it(
    service: MagicMock, model: MagicMock
) -> None:
    model.refuse_if_full.side_effect = OverloadedError("full")
    client = Client(True, b"body")
    with pytest.raises(OverloadedError):
        await Pipeline(service).http(client.request, lambda _: Target(model, lambda _: Call()), model)
    assert client.body == b"body"
