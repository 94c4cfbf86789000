"""Connections that the page's server closes, tested on their states alone."""

from dataclasses import dataclass, field

import pytest

from flask_app.connections import RECEIVE_WITHIN_S, SPARE_CONNECTIONS, ConnectionLimiter

NOW = 1_000_000.0


@dataclass(eq=False)
class Request:
    """Part of waitress' request that the limiter reads."""

    body_bytes_received: int = 0


@dataclass(eq=False)
class Channel:
    """Part of waitress' channel that the limiter reads and sets."""

    request: Request | None = None
    requests: list[Request] = field(default_factory=list)
    last_activity: float = NOW
    will_close: bool = False


@pytest.fixture
def limiter() -> ConnectionLimiter:
    """Limiter for three connections and a hundred bytes."""
    return ConnectionLimiter(3 + SPARE_CONNECTIONS, 100)


def closed(channels: list[Channel]) -> list[bool]:
    return [channel.will_close for channel in channels]


def test_a_request_must_be_complete_in_time(limiter: ConnectionLimiter) -> None:
    """Sending a byte now and then does not help; an answer may take its time."""
    channels = [Channel(Request()), Channel(requests=[Request()]), Channel()]
    limiter.close_excess(channels, [], NOW)
    limiter.close_excess(channels, [], NOW + RECEIVE_WITHIN_S)
    assert closed(channels) == [False, False, False]
    limiter.close_excess(channels, [], NOW + RECEIVE_WITHIN_S + 1)
    assert closed(channels) == [True, False, False]


def test_the_next_request_has_its_own_time(limiter: ConnectionLimiter) -> None:
    channel = Channel(Request())
    limiter.close_excess([channel], [], NOW)
    channel.request = Request()
    limiter.close_excess([channel], [], NOW + RECEIVE_WITHIN_S + 1)
    assert not channel.will_close


def test_bodies_that_wait_for_a_thread_count(limiter: ConnectionLimiter) -> None:
    """Counts a body once, also when its client has disconnected."""
    gone, queued = Channel(requests=[Request(60)]), Channel(requests=[Request(30)])
    channels = [queued, Channel(Request(10))]
    limiter.close_excess(channels, [queued, gone], NOW)
    assert closed(channels) == [False, False]
    channels.append(Channel(Request(1)))
    limiter.close_excess(channels, [queued, gone], NOW + 1)
    assert closed(channels) == [False, True, False]
