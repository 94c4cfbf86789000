"""Messages that are read a few at a time: who waits, who hurries, and what is left behind."""

import asyncio
from collections.abc import Coroutine

import grpc
import pytest

from serving.errors import InvalidRequestError, SlowBodyError
from serving.frontends.v2_grpc_limits import Arrivals, options
from serving.settings import Settings

MB = 2**20


def arrivals(timeout_ms: int = 60_000) -> Arrivals:
    """With four places."""
    return Arrivals(
        Settings(body_timeout_ms=timeout_ms, max_body_bytes=4 * MB, max_buffered_bytes=16 * MB)
    )


async def never() -> bytes:
    """A message that does not end."""
    await asyncio.Event().wait()
    raise AssertionError


async def at_once() -> bytes:
    """A message that is here."""
    return b"message"


def run(work: Coroutine[object, object, None]) -> None:
    """Within a time that only a mistake takes."""
    asyncio.run(asyncio.wait_for(work, 20))


def test_a_flood_that_never_ends_is_passed_by() -> None:
    async def main() -> None:
        one = arrivals()
        one.patience_s = 0.01
        slow = [asyncio.ensure_future(one.read(never)) for _ in range(100)]
        await asyncio.sleep(0)
        assert await one.read(at_once) == b"message"
        assert sum(task.done() for task in slow) < 100
        for task in slow:
            task.cancel()
        ended = await asyncio.gather(*slow, return_exceptions=True)
        assert {type(error) for error in ended} == {SlowBodyError, asyncio.CancelledError}
        assert await asyncio.gather(*(one.read(at_once) for _ in range(50))) == [b"message"] * 50
        assert (one._free, one._waiting, one._arriving) == (4, [], {})

    run(main())


def test_where_nobody_waits_nobody_hurries() -> None:
    async def main() -> None:
        one = arrivals()
        one.patience_s = 0
        gate = asyncio.Event()

        async def slowly() -> bytes:
            await gate.wait()
            return b"late"

        four = [asyncio.ensure_future(one.read(slowly)) for _ in range(4)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(task.done() for task in four)
        gate.set()
        assert await asyncio.gather(*four) == [b"late"] * 4

    run(main())


def test_all_time_out_in_the_end() -> None:
    async def main() -> None:
        one = arrivals(20)
        tasks = [asyncio.ensure_future(one.read(never)) for _ in range(30)]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in ended} == {SlowBodyError}
        assert (one._free, one._waiting, one._arriving) == (4, [], {})

    run(main())


def test_a_call_without_a_message() -> None:
    async def nothing() -> object:
        return grpc.aio.EOF

    async def main() -> None:
        with pytest.raises(InvalidRequestError, match="no message"):
            await arrivals().read(nothing)

    run(main())


def test_the_server_s_own_bounds() -> None:
    chosen = dict(options(Settings(max_body_bytes=5, grpc_max_connections=6, web_processes=2)))
    assert chosen["grpc.max_receive_message_length"] == 5
    assert chosen["grpc.max_allowed_incoming_connections"] == 6
    assert chosen["grpc.so_reuseport"] == 1
