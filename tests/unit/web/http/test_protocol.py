"""HTTP connections of a small application, on real sockets: order, bounds, and how they end."""

import asyncio
import contextlib
import gc
import math
import re
import socket
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from smallplates.web.http.protocol import (
    CONTINUE,
    MAX_CHUNKS,
    MAX_DROPPED,
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    MAX_PIPELINED,
    SMALL_CHUNK,
    Connections,
    HttpProtocol,
    Refusal,
    ResponseTransport,
)
from tests.servers import until

pytestmark = pytest.mark.anyio
GET = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
TINY = b"1\r\na\r\n" * 2 * MAX_CHUNKS
STATUS = re.compile(rb"HTTP/1\.1 (\d+)")


def post(path: bytes, size: int, extra: bytes = b"", version: bytes = b"1.1") -> bytes:
    """The head of a request whose body is still to come."""
    return b"POST /%s HTTP/%s\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n" % (path, version, size, extra)


class Application:
    """Answers with its path, in the order in which it is allowed to; /read wants the body first.

    /parts sends the beginning of its answer before it waits; /fails sends no more than that.
    """

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked: list[str] = []
        self.held = self.disconnected = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # Any: ASGI's
        path = scope["path"]
        self.asked.append(path)
        size = 0
        if path in ("/read", "/held"):
            while (message := await receive())["type"] == "http.request":
                size += len(message["body"])
                if not message["more_body"]:
                    break
        if path == "/held":
            scope["disconnect"].add_done_callback(self.on_disconnect)
            self.held = True
            await self.gate.wait()
        body = f"{path} {size}.".encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if path in ("/parts", "/fails"):
            await send({"type": "http.response.body", "body": body[:1], "more_body": True})
            if path == "/fails":
                raise ValueError(path)
            await self.gate.wait()
            body = body[1:]
        await send({"type": "http.response.body", "body": body})

    def on_disconnect(self, _: object) -> None:
        self.disconnected = True
        self.gate.set()


class Client:
    """One connection, both ends of which are here."""

    def __init__(self, app: Application, connections: Connections, keep_alive_s: float) -> None:
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.timeout_keep_alive = keep_alive_s  # type: ignore[assignment]  # a fraction will do
        self.app = app
        self.connections = connections
        self.state = ServerState()
        self.checked: list[str] = []
        connections.check_head = self.check_head
        self.protocol = HttpProtocol(config, self.state, {}, connections=connections)
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    def check_head(self, scope: Any) -> Refusal | None:  # Any: ASGI's
        """Refuses /full with 422."""
        self.checked.append(scope["path"])
        return (422, [(b"content-length", b"4")], b"full") if scope["path"] == "/full" else None

    def drain(self) -> None:
        self.connections.draining = True
        self.protocol.drain()

    async def ask(self, data: bytes, *paths: str) -> None:
        self.writer.write(data)
        await until(lambda: self.app.asked == list(paths))

    async def is_last(self) -> None:
        await until(lambda: not self.protocol.cycle.keep_alive)

    async def is_closed(self) -> None:
        await until(lambda: not self.state.connections)

    async def rest(self) -> bytes:
        return await self.reader.read()


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def limits() -> dict[str, float]:
    """Time limits of a connection, in seconds."""
    return {}


@pytest.fixture
async def client(limits: dict[str, float]) -> AsyncIterator[Client]:
    connections = Connections(head_s=limits.get("head_s", 20))
    client = Client(Application(), connections, limits.get("keep_alive_s", 60))
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: client.protocol, theirs)
    client.reader, client.writer = await asyncio.open_connection(sock=ours)
    yield client
    client.app.gate.set()
    client.writer.close()
    with contextlib.suppress(ConnectionError):
        await client.writer.wait_closed()
    await until(lambda: not (client.state.connections or client.state.tasks))  # nothing must stay


def statuses(answers: bytes) -> list[bytes]:
    return STATUS.findall(answers)


HTTP2 = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
WEBSOCKET = b"Upgrade: websocket\r\nConnection: keep-alive, upgrade\r\nSec-WebSocket-Version: 13\r\n"


@pytest.mark.parametrize("offer", [HTTP2, WEBSOCKET], ids=["http2", "websocket"])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("piecewise", [False, True])
async def test_the_body_of_an_offer_of_another_protocol_belongs_to_it(
    client: Client, offer: bytes, chunked: bool, piecewise: bool
) -> None:
    """Offers are ignored, and hide nothing from the parser; a body is never another request."""
    body = GET % b"b"
    request = post(b"read", len(body), offer) + body
    if chunked:
        head = CHUNKED.replace(b"Transfer", offer + b"Transfer")
        request = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    for piece in [bytes([byte]) for byte in request] if piecewise else [request * 2]:
        client.writer.write(piece)
        await client.writer.drain()
    client.writer.write(b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert statuses(await client.rest()) == [b"200"] * (2 if piecewise else 3)
    assert client.app.asked == ["/read"] * (1 if piecewise else 2) + ["/a"]


async def test_who_offers_another_protocol_and_closes_is_answered(client: Client) -> None:
    client.writer.write(post(b"read", 3, HTTP2.replace(b"Upgrade,", b"Upgrade, close,")) + b"abc")
    assert statuses(await client.rest()) == [b"200"]


async def test_many_heads_together_may_be_larger_than_one(client: Client) -> None:
    filler = b"x: " + b"y" * (MAX_HEAD_BYTES // 2)
    for number in range(5):
        client.writer.write((GET % b"a").replace(b"Host", filler + b"\r\nHost"))
        await client.reader.readuntil(b"/a 0.")
        assert len(client.app.asked) == number + 1


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
async def test_what_cannot_be_read_spoils_no_answer_before_it(
    client: Client, rest: bytes, before: int
) -> None:
    """It would be taken for the first one's answer."""
    await client.ask(GET % b"held" + (GET % b"a") * (before - 1), "/held")
    client.writer.write(rest)
    await client.is_last()
    assert client.protocol.flow.read_paused
    client.app.gate.set()
    answers = await client.rest()
    count = 1 + MAX_PIPELINED if rest.startswith(GET % b"b") else before
    assert statuses(answers) == [b"200"] * count
    assert answers.count(b"connection: close\r\n") == 1
    assert len(client.app.asked) == count


async def test_a_connection_goes_on_after_requests_that_are_refused_by_their_heads(
    client: Client,
) -> None:
    """Their bodies are dropped; a refusal does not overtake the answers before it."""
    client.writer.write(post(b"full", SIZE))
    refused = await client.reader.readuntil(b"full")
    assert refused.startswith(b"HTTP/1.1 422 Unprocessable Content\r\ndate: ")
    assert b"connection" not in refused
    client.writer.write(bytes(SIZE) + CHUNKED.replace(b"read", b"full"))
    await client.reader.readuntil(b"full")
    await client.ask(b"3\r\nabc\r\n0\r\n\r\n" + (GET % b"full") * 2 + GET % b"held", "/held")
    assert statuses(await client.reader.readuntil(b"fullHTTP")) == [b"422"]
    client.writer.write(GET % b"full")
    await until(lambda: len(client.protocol.pipeline) == 1)
    client.app.gate.set()
    client.writer.write_eof()
    assert re.findall(rb"full$|full(?=HTTP)|/\w+ 0\.", await client.rest()) == [
        b"full",
        b"/held 0.",
        b"full",
    ]
    assert client.checked == ["/full"] * 4 + ["/held", "/full"]
    assert client.state.total_requests == 6


@pytest.mark.parametrize("kind", ["close", "1.0", "draining"])
async def test_a_refusal_by_the_head_may_be_the_last_answer(client: Client, kind: str) -> None:
    if kind == "draining":
        client.drain()
    extra = b"Connection: close\r\n" if kind == "close" else b""
    client.writer.write(post(b"full", SIZE, extra, b"1.0" if kind == "1.0" else b"1.1"))
    answer = await client.rest()  # to the end: our side is closed
    assert statuses(answer) == [b"422"]
    assert answer.endswith(b"\r\nconnection: close\r\n\r\nfull")
    client.writer.write(bytes(SIZE) + GET % b"a")
    await client.is_closed()
    assert not client.app.asked


@pytest.mark.parametrize("limits", [{"head_s": 0.05, "keep_alive_s": 0.05}])
@pytest.mark.parametrize("sent", [3, 2, 0])
async def test_the_rest_of_a_refused_request_and_the_next_one_have_their_time(
    client: Client, sent: int
) -> None:
    client.writer.write(post(b"full", 3) + bytes(sent))
    assert (await client.rest()).count(b"full") == 1
    await client.is_closed()


@pytest.mark.parametrize("without_end", [False, True])
@pytest.mark.parametrize("path", [b"full", b"early"])
async def test_of_a_refused_body_in_tiny_chunks_only_the_first_are_parsed(
    client: Client, path: bytes, without_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.writer.write(CHUNKED.replace(b"read", path) + TINY[:60])
    answer = await client.reader.readuntil(b"full" if path == b"full" else b"0.")
    client.writer.write(TINY)
    assert statuses(answer + await client.rest()) == [b"422" if path == b"full" else b"200"]
    monkeypatch.setattr(client.protocol, "parser", None)
    client.writer.write(TINY)
    if without_end:
        client.writer.write(bytes(MAX_DROPPED))
    else:
        client.writer.write_eof()
    await client.is_closed()


async def test_a_large_body_may_have_many_chunks_but_no_small_ones_after_its_answer(
    client: Client,
) -> None:
    chunks = (b"%x\r\n%s\r\n" % (SMALL_CHUNK, bytes(SMALL_CHUNK))) * (MAX_CHUNKS * 2)
    for _ in range(2):
        client.writer.write(CHUNKED + chunks + b"0\r\n\r\n")
        await client.reader.readuntil(b"/read %d." % (SMALL_CHUNK * MAX_CHUNKS * 2))
    client.writer.write(CHUNKED.replace(b"read", b"full") + chunks)
    assert statuses(await client.rest()) == [b"422"]


async def test_of_requests_that_arrive_together_only_the_first_are_refused_at_once(
    client: Client,
) -> None:
    client.writer.write((GET % b"full") * 50)
    answers = await client.rest()
    assert statuses(answers) == [b"422"] * MAX_PIPELINED + [b"200"] * (1 + MAX_PIPELINED)
    assert len(client.checked) == MAX_PIPELINED


async def test_a_broken_rest_of_a_refused_body_is_not_answered_twice(client: Client) -> None:
    client.writer.write(CHUNKED.replace(b"read", b"full") + b"no length\r\n")
    assert statuses(await client.rest()) == [b"422"]


async def test_who_does_not_read_gets_no_refusals_by_the_head(client: Client) -> None:
    client.protocol.pause_writing()
    await client.ask(GET % b"full", "/full")
    assert not client.checked
    client.protocol.resume_writing()


@pytest.mark.parametrize("first", [b"", GET % b"a"])
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"garbage\r\n\r\n", b"400"),
        (GET % b"\xff", b"400"),
        (CHUNKED + b"no length\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 2 * MAX_HEAD_BYTES, b"431"),
        (GET % (b"y" * MAX_HEAD_BYTES), b"431"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", b"400"),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", b"505"),
        (b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * (MAX_FIELDS + 1), b"431"),
        (CHUNKED + b"0\r\n" + b"a:\r\n" * 2 * MAX_FIELDS, b"431"),
        (CHUNKED + TINY, b"413"),
        (CHUNKED.replace(b"chunked", b"gzip, chunked") + b"0\r\n\r\n", b"501"),
        (CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n", b"400"),
    ],
)
async def test_who_sends_what_cannot_be_read_is_told(
    client: Client, first: bytes, data: bytes, status: bytes
) -> None:
    await client.ask(first, *(["/a"] if first else []))
    client.writer.write(data)
    answers = await client.rest()
    assert statuses(answers) == [b"200"] * bool(first) + [status]
    assert b"\r\ndate: " in answers
    assert answers.count(b"connection: close\r\n") == 1


@pytest.mark.parametrize("head", [b"GET /a HTTP/1.0\r\n\r\n", CHUNKED.replace(b"chunked", b"Chunked")])
async def test_heads_that_are_accepted(client: Client, head: bytes) -> None:
    client.writer.write(head + (b"0\r\n\r\n" if b"hunked" in head else b""))
    client.writer.write_eof()
    assert statuses(await client.rest()) == [b"200"]


async def test_a_broken_rest_of_a_body_is_not_answered_twice(client: Client) -> None:
    await client.ask(CHUNKED.replace(b"/read", b"/early"), "/early")
    client.writer.write(b"no length\r\n")
    assert statuses(await client.rest()) == [b"200"]


async def test_who_leaves_a_large_body_behind_has_left(client: Client) -> None:
    """Also where all of it came at once, while it was waited for."""
    await client.ask(post(b"held", 150_000), "/held")
    client.protocol.data_received(bytes(150_000))
    await until(lambda: client.app.held)
    client.writer.close()
    await until(lambda: client.app.disconnected)


@pytest.mark.parametrize("limits", [{"keep_alive_s": 0.01}])
@pytest.mark.parametrize("size", [0, 3])
async def test_an_idle_connection_is_closed(client: Client, size: int) -> None:
    await client.ask(post(b"early", size), "/early")
    client.writer.write(bytes(size))
    assert b"connection: close\r\n" not in await client.rest()


@pytest.mark.parametrize("limits", [{"head_s": 0.01}])
async def test_a_connection_that_sends_nothing_is_closed(client: Client) -> None:
    assert await client.rest() == b""


@pytest.mark.parametrize("limits", [{"head_s": 0.1}])
async def test_a_head_that_began_before_an_answer_has_no_more_time_than_others(client: Client) -> None:
    await client.ask(GET % b"held", "/held")
    client.protocol.data_received(b"GET /")
    client.app.gate.set()
    assert statuses(await client.rest()) == [b"200"]


async def test_unread_answers_are_bounded_in_time(client: Client) -> None:
    client.protocol.pause_writing()
    timer = client.protocol._write_timer
    assert timer is not None
    client.protocol.resume_writing()
    assert timer.cancelled()
    client.connections.write_s = 0.01
    client.protocol.pause_writing()
    assert await client.rest() == b""


async def test_a_client_that_leaves_while_answers_are_unread(client: Client) -> None:
    client.protocol.pause_writing()
    client.writer.close()
    await client.is_closed()
    timer = client.protocol._write_timer
    assert timer is not None
    assert timer.cancelled()


async def test_a_connection_makes_room_while_it_waits_for_its_client(client: Client) -> None:
    await client.ask(post(b"held", 3), "/held")
    client.protocol.data_received(b"abc")
    assert not client.connections.make_room()
    client.app.gate.set()
    await client.reader.readuntil(b"/held 3.")
    assert client.connections.make_room()
    await client.is_closed()
    assert client.connections.open == -1  # ended once, where `server.py` would have begun it
    assert not client.connections.make_room()


@pytest.mark.parametrize("data", [b"", post(b"read", 3) + b"a"])
async def test_a_connection_whose_request_is_incomplete_makes_room(client: Client, data: bytes) -> None:
    await client.ask(data, *(["/read"] if data else []))
    assert client.connections.make_room()
    await client.is_closed()


async def test_a_client_that_leaves_an_incomplete_body_has_left(client: Client) -> None:
    await client.ask(post(b"read", 3) + b"a", "/read")
    client.writer.write_eof()
    assert await client.rest() == b""
    assert not client.connections.make_room()


async def test_requests_behind_another_one_wait_in_the_system(client: Client) -> None:
    await client.ask(GET % b"parts", "/parts")
    client.protocol.data_received(GET % b"a")
    assert client.protocol.flow.read_paused


async def test_the_time_to_be_idle_ends_with_the_next_request(client: Client) -> None:
    """It begins with the end of a body that nobody has read; the next request was in the same packet."""
    await client.ask(post(b"early", 3), "/early")
    await client.ask(b"abc" + GET % b"held", "/early", "/held")
    assert client.protocol._closes_at == math.inf


async def test_who_is_slow_with_another_request_is_still_answered(client: Client) -> None:
    await client.ask(GET % b"held", "/held")
    client.connections.head_s = 0.01
    client.writer.write(b"GET /")
    await client.is_last()
    client.app.gate.set()
    answers = await client.rest()
    assert statuses(answers) == [b"200"]
    assert b"connection: close\r\n" in answers


SIZE = 30_000_000


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("rest", [b"", GET % b"later"])
async def test_a_client_that_closes_has_its_answer_before_its_body_is_sent(
    client: Client, version: bytes, rest: bytes
) -> None:
    """Were the connection closed at once, the body would meet nobody, and the system drop the answer."""
    client.writer.write(post(b"early", SIZE, b"Connection: close\r\n", version))
    answer = await client.rest()  # to the end: our side is closed
    assert statuses(answer) == [b"200"]
    assert b"connection: close\r\n" in answer
    client.writer.write(bytes(SIZE) + rest)
    await client.writer.drain()
    await client.is_closed()
    assert client.app.asked == ["/early"]


@pytest.mark.parametrize("limits", [{"head_s": 0.05}])
@pytest.mark.parametrize("path", [b"early", b"fails"])
@pytest.mark.parametrize("extra", [b"", b"Connection: close\r\n"])
async def test_a_body_that_nobody_reads_is_not_waited_for(
    client: Client, path: bytes, extra: bytes
) -> None:
    client.writer.write(post(path, SIZE, extra))
    await client.is_closed()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_only_newer_clients_are_told_to_go_on(client: Client, version: bytes) -> None:
    head = post(b"read", 3, b"Connection: close\r\nExpect: 100-continue\r\n", version)
    await client.ask(head, "/read")
    client.writer.write(b"abc")
    answers = [b"200"] if version == b"1.0" else [b"100", b"200"]
    assert statuses(await client.rest()) == answers


@pytest.mark.parametrize("target", [b"http://x", b"http://x?a=b", b"http://x/", b"/", b"//"])
async def test_the_root_by_any_name(client: Client, target: bytes) -> None:
    client.writer.write(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % target)
    assert await client.rest()
    assert client.app.asked == ["//" if target == b"//" else "/"]


@pytest.mark.parametrize("busy", [False, True])
async def test_the_servers_end(client: Client, busy: bool) -> None:
    """What was accepted is answered; who is idle is not told."""
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


@pytest.mark.parametrize("path", ["/early", "/held"])
async def test_what_a_client_sent_goes_with_it(client: Client, path: str) -> None:
    """Without the garbage collector, which comes late to what is old."""
    request = post(b"read", SIZE) if path == "/held" else b""
    await client.ask(post(path[1:].encode(), 0 if request else SIZE) + request + bytes(200_000), path)
    await until(lambda: client.app.held or client.state.total_requests == 1)
    known = weakref.ref(client.protocol.cycle)
    gc.disable()
    try:
        client.writer.close()
        await client.is_closed()
        assert known() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("extra", [b"", b"Connection: close\r\n"])
async def test_a_request_while_the_service_drains_is_answered_as_the_last(
    client: Client, extra: bytes
) -> None:
    await client.ask(GET % b"a", "/a")
    assert b"connection: close\r\n" not in await client.reader.readuntil(b"/a 0.")
    client.drain()
    client.writer.write(post(b"read", 3, extra) + b"abc")
    answer = await client.rest()
    assert statuses(answer) == [b"200"]
    assert answer.count(b"connection: close\r\n") == 1
    assert answer.endswith(b"/read 3.")


@pytest.mark.parametrize("early", [False, True])
async def test_while_draining_the_newest_request_is_the_last(client: Client, early: bool) -> None:
    await client.ask(GET % b"held", "/held")
    if early:
        client.drain()
    client.protocol.data_received(post(b"read", 3))
    client.drain()
    client.app.gate.set()
    first = await client.reader.readuntil(b"/held 0.")
    assert b"connection: close\r\n" not in first
    client.writer.write(b"abc")
    last = await client.rest()
    assert b"connection: close\r\n" in last
    assert last.endswith(b"/read 3.")


async def test_an_answer_that_has_begun_is_not_the_last(client: Client) -> None:
    await client.ask(GET % b"parts", "/parts")
    assert b"connection: close\r\n" not in await client.reader.readuntil(b"\r\n\r\n")
    client.drain()
    client.app.gate.set()
    await client.reader.readuntil(b"/parts 0.")
    client.writer.write(GET % b"a")
    assert b"connection: close\r\n" in await client.rest()


async def test_what_comes_behind_the_last_answer_is_not_answered(client: Client) -> None:
    client.drain()
    await client.ask(GET % b"parts", "/parts")
    await client.reader.readuntil(b"connection: close\r\n")
    client.writer.write(GET % b"b")
    await until(lambda: len(client.protocol.pipeline) == 1)
    client.app.gate.set()
    assert (await client.rest()).endswith(b"/parts 0.")
    assert client.app.asked == ["/parts"]


async def test_the_rest_of_a_body_is_taken_behind_the_last_answer(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.drain()
    await client.ask(post(b"early", 3), "/early")
    assert b"connection: close\r\n" in await client.rest()
    client.writer.write(b"abc" + GET % b"b")
    await client.is_closed()
    assert client.app.asked == ["/early"]
    assert not caplog.records


async def test_trailers_are_not_headers_of_the_request(client: Client) -> None:
    await client.ask(CHUNKED.replace(b"/read", b"/held"), "/held")
    headers = client.protocol.scope["headers"]
    client.writer.write(b"0\r\nx-forged: yes\r\n\r\n")
    await until(lambda: client.app.held)
    assert [name for name, _ in headers] == [b"host", b"transfer-encoding"]


async def test_a_client_that_leaves_after_its_answer_does_not_disconnect(client: Client) -> None:
    await client.ask(GET % b"a", "/a")
    disconnect = client.protocol.scope["disconnect"]  # type: ignore[typeddict-item]  # our own key
    await client.reader.readuntil(b"/a 0.")
    client.writer.close()
    await client.is_closed()
    assert not disconnect.done()


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(data)


HEAD = b"HTTP/1.1 %s\r\ncontent-length: 2\r\n\r\n"


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (b"200 OK", b"200 OK"),
        (b"413 Request Entity Too Large", b"413 Content Too Large"),
        (b"422 Unprocessable Entity", b"422 Unprocessable Content"),
    ],
)
def test_head_and_body_are_one_packet(status: bytes, sent: bytes) -> None:
    """Also behind a `100 Continue`, and before a second part of the body."""
    wire = Wire()
    transport = ResponseTransport(wire, pytest.fail)
    transport.expects_head = True
    for data in (CONTINUE, HEAD % status, b"h", b"i"):
        transport.write(data)
    assert wire.writes == [CONTINUE, HEAD % sent + b"h", b"i"]


async def test_an_answer_without_a_body_is_sent(client: Client) -> None:
    client.writer.write(b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n")
    assert statuses(await client.reader.readuntil(b"\r\n\r\n")) == [b"200"]


@pytest.mark.parametrize("behind", [b"", GET % b"a"])
async def test_a_client_that_leaves_for_good_is_noticed(
    client: Client, behind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await client.ask(post(b"held", 3) + b"abc" + behind, "/held")
    await until(lambda: client.app.held)
    client.writer.close()
    await until(lambda: client.app.disconnected)
    await until(lambda: not client.state.tasks)
    assert not caplog.records
