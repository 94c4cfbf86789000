"""One request and its answer, without a connection: what is written, and what a failure leaves."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.server import ServerState

from serving.http.exchange import CONTINUE, Exchange, Line

App = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]  # Any: ASGI's messages
Headers = Sequence[tuple[bytes, bytes]]
FAILED = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: text/plain\r\ncontent-length: 21\r\n"
    b"connection: close\r\n\r\nInternal Server Error"
)


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False
        self.reads = True

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_reading(self) -> bool:
        return self.reads


class Case:
    """An exchange on a wire; made within a loop."""

    def __init__(self, method: str = "GET", version: str = "1.1", **kwargs: Any) -> None:
        self.wire = Wire()
        self.flow = FlowControl(self.wire)
        self.state = ServerState()
        self.completed = 0
        self.exchange = Exchange(
            Line(self.wire, self.flow, asyncio.get_running_loop(), self.state),
            {"method": method, "http_version": version},
            on_complete=self.on_complete,
            **{"keep_alive": version != "1.0", "expects_continue": False, **kwargs},
        )

    def on_complete(self) -> None:
        self.completed += 1


def answered(app: App, *arguments: str, **kwargs: Any) -> Wire:
    """What an application's answer to a request without a body looks like."""

    async def main() -> Wire:
        case = Case(*arguments, **kwargs)
        case.exchange.end_body()
        await case.exchange.run(app)
        assert case.completed == case.exchange.complete
        return case.wire

    return asyncio.run(main())


def head(status: int = 200, headers: Headers = ()) -> dict[str, Any]:
    """The beginning of an answer."""
    return {"type": "http.response.start", "status": status, "headers": headers}


def part(body: bytes, more: bool = False) -> dict[str, Any]:
    """A part of its body."""
    return {"type": "http.response.body", "body": body, "more_body": more}


def length(size: int) -> Headers:
    """The header that tells it."""
    return [(b"content-length", str(size).encode())]


def says(*messages: dict[str, Any], then: BaseException | None = None) -> App:
    """An application that sends these, and may fail in the end."""

    async def app(_: Any, __: Any, send: Any) -> None:
        for message in messages:
            await send(message)
        if then is not None:
            raise then

    return app


OK, CLOSE, CHUNKS = b"HTTP/1.1 200 OK\r\n", b"connection: close\r\n", b"transfer-encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("messages", "request_line", "writes", "closed"),
    [
        ([head(headers=length(2)), part(b"hi")], (), [OK + b"content-length: 2\r\n\r\nhi"], False),
        (
            [head(headers=length(4)), part(b"hi", True), part(b"ho")],
            (),
            [OK + b"content-length: 4\r\n\r\nhi", b"ho"],
            False,
        ),
        (
            [head(headers=length(2)), part(b"hi")],
            ("GET", "1.0"),
            [OK + b"content-length: 2\r\n" + CLOSE + b"\r\nhi"],
            True,
        ),
        (
            [head(headers=[*length(2), (b"Connection", b"Close")]), part(b"hi")],
            (),
            [OK + b"content-length: 2\r\nConnection: Close\r\n\r\nhi"],
            True,
        ),
        ([head(), part(b"")], (), [OK + CHUNKS + b"\r\n0\r\n\r\n"], False),
        ([head(), part(b"hi")], (), [OK + CHUNKS + b"\r\n2\r\nhi\r\n0\r\n\r\n"], False),
        (
            [head(), part(b"", True), part(b"x" * 17, True), part(b"")],
            (),
            [OK + CHUNKS + b"\r\n", b"11\r\n" + b"x" * 17 + b"\r\n", b"0\r\n\r\n"],
            False,
        ),
        (
            [head(headers=[(b"Transfer-Encoding", b"chunked")]), part(b"hi")],
            (),
            [OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"],
            False,
        ),
        (
            [head(), part(b"hi", True), part(b"ho")],
            ("GET", "1.0"),
            [OK + CLOSE + b"\r\nhi", b"ho"],
            True,
        ),
        ([head(headers=length(2)), part(b"hi")], ("HEAD",), [OK + b"content-length: 2\r\n\r\n"], False),
        ([head(), part(b"hi", True), part(b"ho")], ("HEAD",), [OK + b"\r\n"], False),
        ([head(204), part(b"")], (), [b"HTTP/1.1 204 No Content\r\n\r\n"], False),
        (
            [head(304, length(9)), part(b"")],
            (),
            [b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n"],
            False,
        ),
        ([head(299, length(0)), part(b"")], (), [b"HTTP/1.1 299 \r\ncontent-length: 0\r\n\r\n"], False),
        ([head(headers=length(2)), part(memoryview(b"hi"))], (), None, False),  # type: ignore[arg-type]
    ],
)
def test_framing(
    messages: list[dict[str, Any]],
    request_line: tuple[str, ...],
    writes: list[bytes] | None,
    closed: bool,
) -> None:
    wire = answered(says(*messages), *request_line)
    assert wire.writes == (writes or [OK + b"content-length: 2\r\n\r\nhi"])
    assert wire.closed == closed


def test_the_servers_own_headers_come_first() -> None:
    async def main() -> None:
        case = Case()
        case.state.default_headers.append((b"date", b"now"))
        await case.exchange.run(says(head(headers=[(b"a", b"\xff\tb")]), part(b"")))
        assert case.wire.writes[0].startswith(OK + b"date: now\r\na: \xff\tb\r\n")

    asyncio.run(main())


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [part(b"no head")],
        [head()],
        [head(headers=length(2))],
        [head(), head()],
        [{"type": "http.response.debug"}],
        [head(headers=[(b"x", b"a\r\nset-cookie: b")]), part(b"")],
        [head(headers=[(b"x", b"a\nb")]), part(b"")],
        [head(headers=[(b"x", b"a\rb")]), part(b"")],
        [head(headers=[(b"x", b"a\0b")]), part(b"")],
        [head(headers=[(b"x\r\ny", b"a")]), part(b"")],
        [head(headers=[(b"content-length", b"many")]), part(b"")],
        [head(headers=length(3)), part(b"hi")],
        [head(headers=length(1)), part(b"hi")],
        [head(headers=length(1)), part(b"hi", True)],
        [head(204), part(b"hi")],
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_cannot_be_sent_is_a_500_as_long_as_nothing_is_sent(
    messages: list[dict[str, Any]], method: str
) -> None:
    wire = answered(says(*messages), method)
    assert (b"".join(wire.writes), wire.closed) == (FAILED, True)


@pytest.mark.parametrize("error", [ValueError("secret"), asyncio.CancelledError(), SystemExit()])
@pytest.mark.parametrize("messages", [[], [head()], [head(headers=length(5))]])
def test_an_application_that_fails_before_its_answer(
    messages: list[dict[str, Any]], error: BaseException
) -> None:
    wire = answered(says(*messages, then=error))
    assert (b"".join(wire.writes), wire.closed) == (FAILED, True)


@pytest.mark.parametrize(
    "end",
    [
        says(head(headers=length(5)), part(b"hi", True), then=ValueError()),
        says(head(headers=length(5)), part(b"hi", True)),
        says(head(headers=length(5)), part(b"hi", True), part(b"")),
        says(head(headers=length(5)), part(b"hi", True), part(b"hihi")),
        says(head(headers=length(5)), part(b"hi", True), head(500)),
        says(head(), part(b"hi", True), then=ValueError()),
    ],
)
def test_an_answer_that_breaks_off_is_seen_to(end: App) -> None:
    """The connection is closed, with less than was promised: no length, no last chunk."""
    wire = answered(end)
    assert wire.closed
    sent = b"".join(wire.writes)
    assert sent.endswith((b"\r\n\r\nhi", b"2\r\nhi\r\n"))


@pytest.mark.parametrize("then", [says(then=ValueError()), says(part(b"more")), says(head())])
def test_what_fails_after_its_answer_harms_nobody(then: App) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await says(head(headers=length(2)), part(b"hi"))(scope, receive, send)
        await then(scope, receive, send)

    wire = answered(app)
    assert wire.writes == [OK + b"content-length: 2\r\n\r\nhi"]
    assert not wire.closed  # the next request's answer may be under way


def test_a_body_comes_as_it_is_sent() -> None:
    async def main() -> None:
        case = Case("POST")
        exchange = case.exchange
        exchange.add_body(b"a")
        exchange.add_body(b"b")
        assert await exchange.receive() == {"type": "http.request", "body": b"ab", "more_body": True}
        waiting = asyncio.ensure_future(exchange.receive())
        await asyncio.sleep(0)
        exchange.add_body(b"c")
        exchange.end_body()
        assert await waiting == {"type": "http.request", "body": b"c", "more_body": False}
        gone = asyncio.ensure_future(exchange.receive())
        await asyncio.sleep(0)
        assert not gone.done()
        exchange.lose_client()
        assert await gone == await exchange.receive() == {"type": "http.disconnect"}

    asyncio.run(main())


def test_several_may_wait_for_the_same_body() -> None:
    async def main() -> None:
        case = Case("POST")
        gave_up, *others = (asyncio.ensure_future(case.exchange.receive()) for _ in range(4))
        await asyncio.sleep(0)
        gave_up.cancel()
        case.exchange.add_body(b"a")
        await asyncio.sleep(0.001)
        assert [other.done() for other in others].count(True) == 1
        case.exchange.end_body()
        await asyncio.sleep(0.001)
        assert [other.done() for other in others].count(True) == 2
        case.exchange.lose_client()
        messages = [await other for other in others]
        assert sorted(str(message.get("body")) for message in messages) == ["None", "b''", "b'a'"]

    asyncio.run(main())


@pytest.mark.parametrize("ends", [False, True])
def test_a_large_body_is_read_no_faster_than_it_is_taken(ends: bool) -> None:
    async def main() -> None:
        case = Case("POST")
        waiting = asyncio.ensure_future(case.exchange.receive())
        await asyncio.sleep(0)
        case.exchange.add_body(bytes(HIGH_WATER_LIMIT))
        assert case.wire.is_reading()
        case.exchange.add_body(b"1")
        assert not case.wire.is_reading()
        if ends:
            case.exchange.end_body()
        message = await waiting
        assert (len(message["body"]), message["more_body"]) == (HIGH_WATER_LIMIT + 1, not ends)
        assert case.wire.is_reading()  # that the client leaves is seen, too

    asyncio.run(main())


@pytest.mark.parametrize("expects", [False, True])
@pytest.mark.parametrize("reads", [False, True])
def test_a_client_is_told_to_go_on_where_its_body_is_wanted(expects: bool, reads: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if reads:
            await receive()
            await receive()
        await says(head(headers=length(2)), part(b"hi"))(scope, receive, send)
        await receive()

    async def main() -> None:
        case = Case("POST", expects_continue=expects)
        running = asyncio.ensure_future(case.exchange.run(app))
        for _ in range(2):
            await asyncio.sleep(0)
            case.exchange.add_body(b"x")
        await running
        told = [CONTINUE] if expects and reads else []
        assert case.wire.writes == [*told, OK + b"content-length: 2\r\n\r\nhi"]

    asyncio.run(main())


def test_a_departure_is_told_at_once_and_nothing_is_sent_any_more() -> None:
    async def main() -> None:
        case = Case()
        told: list[bool] = []
        case.exchange.departure.then = lambda: told.append(True)
        case.exchange.lose_client()
        assert case.exchange.scope["departure"].happened
        assert told == [True]
        await case.exchange.run(says(head(headers=length(2)), part(b"hi")))
        await case.exchange.run(says())
        assert (case.wire.writes, case.completed) == ([], 0)

    asyncio.run(main())


def test_who_leaves_after_the_answer_does_not_depart() -> None:
    async def main() -> None:
        case = Case()
        await case.exchange.run(says(head(headers=length(2)), part(b"hi")))
        case.exchange.departure.then = pytest.fail
        case.exchange.lose_client()
        assert not case.exchange.departure.happened
        assert await case.exchange.receive() == {"type": "http.disconnect"}

    asyncio.run(main())


@pytest.mark.parametrize("leaves", [False, True])
def test_a_slow_reader_holds_its_answer_up_and_may_leave(leaves: bool) -> None:
    async def main() -> None:
        case = Case()
        case.flow.pause_writing()
        answer = case.exchange.run(says(head(headers=length(2)), part(b"hi")))
        running = asyncio.ensure_future(answer)
        await asyncio.sleep(0.001)
        assert case.wire.writes == []
        if leaves:
            case.exchange.lose_client()
        case.flow.resume_writing()
        await running
        assert bool(case.wire.writes) == bool(case.completed) == (not leaves)

    asyncio.run(main())
