"""HTTP connections of a small application, on real sockets: order, bounds, and how they end."""

import asyncio
import contextlib
import gc
import re
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from serving.http.exchange import CONTINUE, Departure
from serving.http.protocol import MAX_HEAD_BYTES, MAX_PIPELINED, HttpProtocol, Patience

GET = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
STATUS = re.compile(rb"HTTP/1\.1 (\d+)")


def post(path: bytes, size: int, extra: bytes = b"", version: bytes = b"1.1") -> bytes:
    """The head of a request whose body is still to come."""
    return b"POST /%s HTTP/%s\r\nContent-Length: %d\r\n%s\r\n" % (path, version, size, extra)


class Application:
    """Answers with its path, in the order in which it is allowed to; /read wants the body first.

    /parts sends the beginning of its answer before it waits.
    """

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked: list[str] = []
        self.held = self.departed = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # Any: ASGI's
        """As ASGI has it."""
        path = scope["path"]
        self.asked.append(path)
        size = 0
        if path in ("/read", "/held"):
            while (message := await receive())["type"] == "http.request":
                size += len(message["body"])
                if not message["more_body"]:
                    break
        if path == "/held":
            departure: Departure = scope["departure"]
            departure.then = self.on_departure
            self.held = True
            await self.gate.wait()
        body = f"{path} {size}.".encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if path == "/parts":
            await send({"type": "http.response.body", "body": body[:1], "more_body": True})
            await self.gate.wait()
            body = body[1:]
        await send({"type": "http.response.body", "body": body})

    def on_departure(self) -> None:
        """A client has left."""
        self.departed = True
        self.gate.set()


class Client:
    """One connection, both ends of which are here."""

    def __init__(self, app: Application, protocol: HttpProtocol, state: ServerState) -> None:
        self.app = app
        self.protocol = protocol
        self.state = state
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def ask(self, data: bytes, *paths: str) -> None:
        """Returns when the application has been asked for these."""
        self.writer.write(data)
        await until(lambda: self.app.asked == list(paths))

    async def is_last(self) -> None:
        """Returns when the newest request is to be the last."""
        await until(lambda: self.protocol.exchange is not None and not self.protocol.exchange.keep_alive)

    async def is_closed(self) -> None:
        """Returns when the other end has closed the connection."""
        await until(lambda: not self.state.connections)

    async def rest(self) -> bytes:
        """All that comes until the connection is closed."""
        return await self.reader.read()


async def until(condition: Callable[[], bool]) -> None:
    """Returns as soon as it holds."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


Talk = Callable[[Client], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def connected(patience: Patience, keep_alive_s: float) -> AsyncIterator[Client]:
    app, state = Application(), ServerState()
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.timeout_keep_alive = keep_alive_s  # type: ignore[assignment]  # a fraction will do
    protocol = HttpProtocol(config, state, {})
    protocol.patience = patience
    client = Client(app, protocol, state)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, theirs)
    client.reader, client.writer = await asyncio.open_connection(sock=ours)
    try:
        yield client
    finally:
        app.gate.set()
        client.writer.close()
        with contextlib.suppress(ConnectionError):
            await client.writer.wait_closed()
        await until(lambda: not (state.connections or state.tasks))  # nothing must stay


def talk(what: Talk, patience: Patience | None = None, keep_alive_s: float = 60) -> None:
    """Runs a client on uvloop, as the service does."""

    async def main() -> None:
        async with asyncio.timeout(20), connected(patience or Patience(), keep_alive_s) as client:
            await what(client)

    uvloop.run(main())


def statuses(answers: bytes) -> list[bytes]:
    """Of all answers."""
    return STATUS.findall(answers)


def talking(
    patience: Patience | None = None, keep_alive_s: float = 60
) -> Callable[[Talk], Callable[[], None]]:
    """Makes a test of a client."""
    return lambda what: lambda: talk(what, patience, keep_alive_s)


@talking()
async def test_answers_come_in_the_order_of_their_requests(client: Client) -> None:
    requests = post(b"held", 3) + b"abc" + GET % b"a" + post(b"read", 2) + b"de" + GET % b"c"
    await client.ask(requests, "/held")
    client.app.gate.set()
    client.writer.write_eof()
    assert re.findall(rb"/\w+ \d\.", await client.rest()) == [
        b"/held 3.",
        b"/a 0.",
        b"/read 2.",
        b"/c 0.",
    ]


@pytest.mark.parametrize(
    "rest",
    [
        b"garbage\r\n\r\n",
        GET % b"\xff",
        b"GET x:443 HTTP/1.1\r\n\r\n",
        b"CONNECT x:443 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 2 * MAX_HEAD_BYTES,
        CHUNKED + b"no length\r\n",
        (GET % b"b") * 50,
    ],
    ids=["garbage", "target", "no path", "tunnel", "long head", "broken body", "many"],
)
@pytest.mark.parametrize("before", [1, 2])
def test_what_cannot_be_read_spoils_no_answer_before_it(rest: bytes, before: int) -> None:
    """It would be taken for the first one's answer."""

    async def ask(client: Client) -> None:
        await client.ask(GET % b"held" + (GET % b"a") * (before - 1), "/held")
        client.writer.write(rest)
        await client.is_last()
        client.app.gate.set()
        answers = await client.rest()
        count = 1 + MAX_PIPELINED if rest.startswith(GET % b"b") else before
        assert statuses(answers) == [b"200"] * count
        assert answers.count(b"connection: close\r\n") == 1
        assert len(client.app.asked) == count

    talk(ask)


@pytest.mark.parametrize("first", [b"", GET % b"a"])
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"garbage\r\n\r\n", b"400"),
        (GET % b"\xff", b"400"),
        (CHUNKED + b"no length\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 2 * MAX_HEAD_BYTES, b"431"),
    ],
)
def test_who_sends_what_cannot_be_read_is_told(first: bytes, data: bytes, status: bytes) -> None:
    async def ask(client: Client) -> None:
        await client.ask(first, *(["/a"] if first else []))
        client.writer.write(data)
        answers = await client.rest()
        assert statuses(answers) == [b"200"] * bool(first) + [status]
        assert b"\r\ndate: " in answers
        assert answers.count(b"connection: close\r\n") == 1

    talk(ask)


@talking()
async def test_a_broken_rest_of_a_body_is_not_answered_twice(client: Client) -> None:
    await client.ask(CHUNKED.replace(b"/read", b"/early"), "/early")
    client.writer.write(b"no length\r\n")
    assert statuses(await client.rest()) == [b"200"]


@talking()
async def test_who_leaves_a_large_body_behind_has_left(client: Client) -> None:
    """Also where all of it came at once, while it was waited for."""
    await client.ask(post(b"held", 150_000), "/held")
    client.protocol.data_received(bytes(150_000))
    await until(lambda: client.app.held)
    client.writer.close()
    await until(lambda: client.app.departed)


@talking(keep_alive_s=0.1)
async def test_the_time_to_be_idle_ends_with_the_next_request(client: Client) -> None:
    """It begins with the end of a body that nobody has read; the next request was in the same packet."""
    await client.ask(post(b"early", 3), "/early")
    await client.ask(b"abc" + GET % b"held", "/early", "/held")
    await asyncio.sleep(0.2)  # longer than that time
    client.app.gate.set()
    assert statuses(await client.rest()) == [b"200", b"200"]


@talking()
async def test_who_is_slow_with_another_request_is_still_answered(client: Client) -> None:
    await client.ask(GET % b"held", "/held")
    client.protocol.patience = Patience(head_s=0.01)
    client.writer.write(b"GET /")
    await client.is_last()
    client.app.gate.set()
    answers = await client.rest()
    assert statuses(answers) == [b"200"]
    assert b"connection: close\r\n" in answers


SIZE = 30_000_000


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("rest", [b"", GET % b"later"])
def test_a_client_that_closes_has_its_answer_before_its_body_is_sent(
    version: bytes, rest: bytes
) -> None:
    """Were the connection closed at once, the body would meet nobody, and the system drop the answer."""

    async def ask(client: Client) -> None:
        client.writer.write(post(b"early", SIZE, b"Connection: close\r\n", version))
        answer = await client.rest()  # to the end: our side is closed
        assert statuses(answer) == [b"200"]
        assert b"connection: close\r\n" in answer
        client.writer.write(bytes(SIZE))
        await client.writer.drain()
        client.writer.write(rest)
        await client.is_closed()
        assert client.app.asked == ["/early"]

    talk(ask)


@talking(Patience(head_s=0.05))
async def test_a_body_that_nobody_reads_is_not_waited_for(client: Client) -> None:
    client.writer.write(post(b"early", SIZE, b"Connection: close\r\n"))
    await client.is_closed()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_only_newer_clients_are_told_to_go_on(version: bytes) -> None:
    async def ask(client: Client) -> None:
        head = post(b"read", 3, b"Connection: close\r\nExpect: 100-continue\r\n", version)
        await client.ask(head, "/read")
        client.writer.write(b"abc")
        answers = [b"200"] if version == b"1.0" else [b"100", b"200"]
        assert statuses(await client.rest()) == answers

    talk(ask)


@pytest.mark.parametrize("target", [b"http://x", b"http://x?a=b", b"http://x/", b"/", b"//"])
def test_the_root_by_any_name(target: bytes) -> None:
    async def ask(client: Client) -> None:
        client.writer.write(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % target)
        assert await client.rest()
        assert client.app.asked == ["//" if target == b"//" else "/"]

    talk(ask)


@pytest.mark.parametrize("busy", [False, True])
def test_the_servers_end(busy: bool) -> None:
    """What was accepted is answered; who is idle is not told."""

    async def ask(client: Client) -> None:
        if busy:
            await client.ask((GET % b"held") * 2, "/held")
        else:
            await client.ask(GET % b"a", "/a")
            await until(lambda: client.state.total_requests == 1)
        client.protocol.shutdown()
        client.app.gate.set()
        answers = await client.rest()
        assert statuses(answers) == [b"200"] * (1 + busy)
        assert answers.count(b"connection: close\r\n") == busy

    talk(ask)


@talking()
async def test_what_a_client_sent_goes_with_it(client: Client) -> None:
    """Without the garbage collector, which comes late to what is old."""
    await client.ask(post(b"early", SIZE) + bytes(200_000), "/early")
    await until(lambda: client.state.total_requests == 1)
    exchange = client.protocol.exchange
    assert exchange is not None
    assert exchange.complete
    known = weakref.ref(exchange)
    del exchange
    gc.disable()
    try:
        client.writer.close()
        await client.is_closed()
        assert known() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("extra", [b"", b"Connection: close\r\n"])
def test_who_comes_while_the_service_leaves_is_answered_for_the_last_time(extra: bytes) -> None:
    async def ask(client: Client) -> None:
        await client.ask(GET % b"a", "/a")
        assert b"connection: close\r\n" not in await client.reader.readuntil(b"/a 0.")
        client.protocol.leave()
        client.writer.write(post(b"read", 3, extra) + b"abc")
        answer = await client.rest()
        assert statuses(answer) == [b"200"]
        assert answer.count(b"connection: close\r\n") == 1
        assert answer.endswith(b"/read 3.")

    talk(ask)


@talking()
async def test_what_has_come_is_answered_before_the_service_leaves(client: Client) -> None:
    await client.ask(GET % b"held" + post(b"read", 3), "/held")
    client.protocol.leave()
    client.app.gate.set()
    first = await client.reader.readuntil(b"/held 0.")
    assert b"connection: close\r\n" not in first
    client.writer.write(b"abc")
    last = await client.rest()
    assert b"connection: close\r\n" in last
    assert last.endswith(b"/read 3.")


@pytest.mark.parametrize("ends", ["client", "server"])
def test_what_comes_after_the_word_of_leave_is_not_answered(ends: str) -> None:
    """Nor does it take the last answer from who sends it."""

    async def ask(client: Client) -> None:
        client.protocol.leave()
        await client.ask(GET % b"parts", "/parts")
        await client.reader.readuntil(b"connection: close\r\n")
        client.writer.write((GET % b"b") * 2)
        exchange = client.protocol.exchange
        await until(lambda: client.protocol.exchange is not exchange)
        client.app.gate.set()
        await until(lambda: client.state.total_requests == 1)
        client.writer.write((GET % b"c") * 10_000)
        await client.writer.drain()
        assert (await client.rest()).endswith(b"/parts 0.")
        if ends == "client":
            client.writer.write_eof()
        else:
            client.protocol.shutdown()
        await client.is_closed()
        assert client.app.asked == ["/parts"]

    talk(ask)


@talking()
async def test_a_body_is_still_taken_from_who_has_the_last_answer(client: Client) -> None:
    client.protocol.leave()
    await client.ask(post(b"early", SIZE), "/early")
    assert b"connection: close\r\n" in await client.rest()
    client.writer.write(bytes(SIZE) + GET % b"b")
    client.writer.write_eof()
    await client.is_closed()
    assert client.app.asked == ["/early"]


@talking(Patience(head_s=0.05))
async def test_who_does_not_take_leave_is_not_waited_for(client: Client) -> None:
    client.protocol.leave()
    client.writer.write(GET % b"a" + b"GET /")
    await client.is_closed()
    assert statuses(await client.rest()) == [b"200"]


@pytest.mark.parametrize("busy", [False, True])
def test_the_end_does_not_wait_for_who_has_been_told_to_leave(busy: bool) -> None:
    async def ask(client: Client) -> None:
        client.protocol.leave()
        await client.ask(GET % b"parts", "/parts")
        if busy:
            client.protocol.shutdown()
            client.app.gate.set()
        else:
            client.app.gate.set()
            await until(lambda: client.state.total_requests == 1)
            client.protocol.shutdown()
        await client.is_closed()
        assert (await client.rest()).endswith(b"/parts 0.")

    talk(ask)


@talking()
async def test_who_only_sends_no_more_gets_the_last_answer_and_the_end(client: Client) -> None:
    await client.ask((GET % b"held") * 2, "/held")
    client.writer.write_eof()
    assert await client.reader.readuntil(b"\r\n\r\n") == CONTINUE  # so the end of sending has been seen
    client.protocol.leave()
    client.app.gate.set()
    assert statuses(await client.rest()) == [b"200", b"200"]
    await client.is_closed()
