"""Closes connections that wait too long for their client; the server's loop in `__main__.py` calls it.

Waitress bounds one body and the number of connections, and closes what was silent for two minutes. By
itself it takes no further connection at that number, and a client that sends a byte now and then keeps
its place, and the memory of half a body, for ever.
"""

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

RECEIVE_WITHIN_S = 60.0
SPARE_CONNECTIONS = 16
Channel = Any  # waitress has no types


class Waiting:
    """Finds the connections that wait for their client: for a request, its rest, or to be read."""

    def __init__(self, connections: int, held_bytes: int) -> None:
        """Bounds for all connections together: their number, and the bytes of their bodies."""
        self._most_open = connections - SPARE_CONNECTIONS
        self._most_held = held_bytes
        self._since: WeakKeyDictionary[Any, float] = WeakKeyDictionary()  # Any: waitress's requests

    def close_some(self, channels: Iterable[Channel], queue: Iterable[Channel], now: float) -> None:
        """Closes what is late and, while there is too much of anything, what waits longest.

        `channels` are open; `queue` waits for threads, perhaps without clients; `now` is time.time().
        """
        staying = [channel for channel in channels if not channel.will_close]
        count = len(staying)
        held = sum(map(_held, {*staying, *queue}))
        waiting = [channel for channel in staying if channel.request or not channel.requests]
        for since, channel in sorted(
            ((self._waits_since(channel, now), channel) for channel in waiting),
            key=lambda pair: pair[0],
        ):
            late = channel.request is not None and now - since > RECEIVE_WITHIN_S
            too_many = count > self._most_open
            too_much = held > self._most_held and _held(channel) > 0
            if late or too_many or too_much:
                channel.will_close = True
                count -= 1
                held -= _held(channel)

    def _waits_since(self, channel: Channel, now: float) -> float:
        """When a request was first seen that is not complete, else when anything last happened."""
        if channel.request is None:
            return float(channel.last_activity)
        return self._since.setdefault(channel.request, now)


def _held(channel: Channel) -> int:
    """Bytes of its bodies, complete or not."""
    requests = [*channel.requests, channel.request]
    return sum(request.body_bytes_received for request in requests if request is not None)
