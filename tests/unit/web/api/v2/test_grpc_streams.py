"""Streams of requests: the order of answers, the number of streams, and their time limits."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc
import pytest

from smallplates.errors import OverloadedError, SlowBodyError
from smallplates.settings import Settings
from smallplates.web.api.v2.grpc_limits import IDLE_S, MAX_UNANSWERED, Streams

MB = 2**20


class Client:
    """A grpc.aio.ServicerContext whose client sends what is put into `sent`, None at the end."""

    def __init__(self, reads: bool = True) -> None:
        self.sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.received: list[bytes] = []
        self._reads = reads

    async def read(self) -> Any:
        """Returns the next message, or gRPC's end of stream."""
        message = await self.sent.get()
        return grpc.aio.EOF if message is None else message

    async def write(self, answer: bytes) -> None:
        """Never ends for a client that does not read."""
        if not self._reads:
            await asyncio.Event().wait()
        self.received.append(answer)


def streams(timeout_ms: int = 60_000) -> Streams:
    """Returns the streams of a service that allows four."""
    return Streams(
        Settings(body_timeout_ms=timeout_ms, max_body_bytes=4 * MB, max_buffered_bytes=16 * MB)
    )


async def same(message: bytes) -> bytes:
    """Answers a message with itself."""
    return message


async def settled(condition: Any) -> None:
    """Lets other tasks run until the condition holds."""
    while not condition():  # noqa: ASYNC110 nobody sets an event
        await asyncio.sleep(0)


def run(work: Coroutine[object, object, None]) -> None:
    """Runs a test; one that hangs fails after 20 s."""
    asyncio.run(asyncio.wait_for(work, 20))


def test_answers_keep_their_order_and_few_are_under_way() -> None:
    async def main() -> None:
        client, gates = Client(), [asyncio.Event() for _ in range(40)]
        began: list[int] = []

        async def ask(message: bytes) -> bytes:
            began.append(int(message))
            await gates[int(message)].wait()
            return message

        serving = asyncio.ensure_future(streams().serve(client, ask))
        for number in range(40):
            client.sent.put_nowait(str(number).encode())
        client.sent.put_nowait(None)
        await settled(lambda: len(began) == MAX_UNANSWERED)
        for gate in reversed(gates[1:]):
            gate.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert client.received == []
        assert len(began) == MAX_UNANSWERED
        gates[0].set()
        await serving
        assert [int(answer) for answer in client.received] == list(range(40))

    run(main())


def test_the_longest_idle_makes_room_and_the_busy_stay() -> None:
    async def main() -> None:
        open_streams, gate = streams(), asyncio.Event()

        async def ask(message: bytes) -> bytes:
            await gate.wait()
            return message

        clients = [Client() for _ in range(6)]
        serving = [asyncio.ensure_future(open_streams.serve(client, ask)) for client in clients[:4]]
        clients[0].sent.put_nowait(b"busy")
        await settled(lambda: len(open_streams._idle) == 3)
        serving.append(asyncio.ensure_future(open_streams.serve(clients[4], ask)))
        with pytest.raises(SlowBodyError, match="another stream needs its place"):
            await serving[1]
        for client in clients[2:5]:
            client.sent.put_nowait(b"busy")
        await settled(lambda: not open_streams._idle)
        with pytest.raises(OverloadedError, match="too many streams"):
            await open_streams.serve(clients[5], ask)
        gate.set()
        for client in clients[:5]:
            client.sent.put_nowait(None)
        await asyncio.gather(*serving[:1], *serving[2:])
        assert [client.received for client in clients[:5]] == [[b"busy"], [], *[[b"busy"]] * 3]
        assert (open_streams._open, open_streams._idle) == (0, {})

    run(main())


@pytest.mark.parametrize("reads", [True, False])
def test_nothing_waits_for_ever(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    assert IDLE_S > 60
    monkeypatch.setattr("smallplates.web.api.v2.grpc_limits.IDLE_S", 0.05 if reads else 60)

    async def main() -> None:
        open_streams, client = streams(timeout_ms=50), Client(reads)
        client.sent.put_nowait(b"message")
        with pytest.raises(SlowBodyError, match="idle for too long"):
            await open_streams.serve(client, same)
        assert client.received == ([b"message"] if reads else [])
        assert (open_streams._open, open_streams._idle) == (0, {})

    run(main())


def test_a_client_that_goes_away_cancels_its_requests() -> None:
    async def main() -> None:
        open_streams, client = streams(), Client()
        began: list[bytes] = []
        cancelled: list[bytes] = []

        async def ask(message: bytes) -> bytes:
            began.append(message)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message)
                raise
            return message

        serving = asyncio.ensure_future(open_streams.serve(client, ask))
        for message in (b"1", b"2"):
            client.sent.put_nowait(message)
        await settled(lambda: len(began) == 2)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert sorted(cancelled) == [b"1", b"2"]
        assert (open_streams._open, open_streams._idle) == (0, {})

    run(main())
