"""Time limits of requests, and clients that disconnect before the answer, without a connection."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from fastapi import Request
from starlette.requests import ClientDisconnect

from smallplates.errors import DrainingError, InvalidRequestError
from smallplates.settings import Settings
from smallplates.web.api.pipeline import Call, Pipeline, Target, parse_timeout, unless_disconnected
from smallplates.web.http.request_context import RequestContext
from smallplates.web.inference.thread_pool import ThreadPool


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

    def __init__(self, tells_at_once: bool) -> None:
        self.disconnected: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        known = {"disconnect": self.disconnected} if tells_at_once else {}
        self.request = Request({"type": "http", **known}, self.receive)

    async def receive(self) -> dict[str, Any]:  # Any: ASGI's message
        """As ASGI has it."""
        await asyncio.shield(self.disconnected)
        return {"type": "http.disconnect"}

    def disconnect(self) -> None:
        """Goes away."""
        self.disconnected.set_result(None)


@pytest.fixture(params=[True, False], ids=["HttpProtocol", "another server"])
def make(request: pytest.FixtureRequest) -> Callable[[], Client]:
    """Makes a client, of our own server or of another one."""
    return lambda: Client(request.param)


def test_work_for_nobody_is_cancelled(make: Callable[[], Client]) -> None:
    async def main() -> None:
        client = make()
        work = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(client.disconnect)
        with pytest.raises(ClientDisconnect):
            await unless_disconnected(client.request, work)
        assert work.cancelled()
        await asyncio.sleep(0)  # the task itself goes on

    asyncio.run(main())


def test_a_client_that_has_gone_already(make: Callable[[], Client]) -> None:
    async def main() -> None:
        client = make()
        client.disconnect()
        with pytest.raises(ClientDisconnect):
            await unless_disconnected(client.request, asyncio.get_running_loop().create_future())

    asyncio.run(main())


def test_a_disconnect_in_the_same_moment_as_the_answer_cancels_nothing_else(
    make: Callable[[], Client],
) -> None:
    async def main() -> None:
        client = make()
        work = asyncio.get_running_loop().create_future()

        def answer_and_disconnect() -> None:
            work.set_result("answer")
            client.disconnect()

        asyncio.get_running_loop().call_soon(answer_and_disconnect)
        assert await unless_disconnected(client.request, work) == "answer"
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(main())


def test_other_reasons_to_cancel_are_passed_on(make: Callable[[], Client]) -> None:
    async def main() -> None:
        client = make()
        work = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(unless_disconnected(client.request, work))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not client.disconnected.cancelled()

    asyncio.run(main())


def request(receive: Callable[[], Any]) -> Request:
    """Returns a request with a context; `receive` returns ASGI's messages."""

    async def next_message() -> Any:
        return receive()

    context = {"context": RequestContext("id"), "disconnect": asyncio.get_running_loop().create_future()}
    return Request({"type": "http", "headers": [], **context}, next_message)


@pytest.mark.parametrize("known", [True, False], ids=["in the path", "in the body"])
def test_only_requests_after_the_beginning_of_a_drain_are_refused(known: bool) -> None:
    service, model = MagicMock(settings=Settings()), MagicMock()
    model.admitted().__aexit__.return_value = False
    model.predict = AsyncMock()
    bodies: list[bytes] = []

    def arrive() -> Any:
        service.check_accepting.side_effect = DrainingError("draining")
        return {"type": "http.request", "body": b"body"}

    def decode(body: bytes) -> Call:
        bodies.append(body)
        return Call()

    async def main() -> None:
        pipeline, target = Pipeline(service), Target(model, decode)
        find: Any = target if known else lambda _: target
        await pipeline.http(request(arrive), find)
        with pytest.raises(DrainingError):
            await pipeline.http(request(lambda: pytest.fail("the body is read")), find)

    asyncio.run(main())
    assert bodies == [b"body"]
    assert model.predict.call_count == 1
    assert model.refuse_if_full.called is known


def test_a_client_that_leaves_while_its_body_is_decoded() -> None:
    gate, begun = threading.Event(), threading.Event()

    def decode(_: bytes) -> Call:
        begun.set()
        assert gate.wait(20)
        return Call()

    model = MagicMock()
    model.admitted().__aexit__.return_value = False

    async def main() -> None:
        threads = ThreadPool(1)
        threads.start()
        message = {"type": "http.request", "body": b"body"}
        pipeline = Pipeline(MagicMock(settings=Settings(), threads=threads))
        sent = request(lambda: message)
        answering = pipeline.http(sent, Target(model, decode, inline_bytes=0))
        task = asyncio.ensure_future(answering)
        assert await asyncio.to_thread(begun.wait, 20)
        sent.scope["disconnect"].set_result(None)
        try:
            with pytest.raises(ClientDisconnect):
                await task
            assert pipeline.reader.buffered == 0
        finally:
            gate.set()
            threads.close()

    asyncio.run(main())
    assert not model.predict.called
