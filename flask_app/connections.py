"""Chooses the connections that the page's server closes because they wait too long for their client.

`server.py` calls it after every turn of its loop. It reads attributes of waitress' channels that
waitress does not document: `request`, `requests`, `last_activity`, `will_close`.
"""

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

RECEIVE_WITHIN_S = 60.0
SPARE_CONNECTIONS = 16
Channel = Any  # waitress has no types


class ConnectionLimiter:
    """Closes connections whose request is late, and the longest waiting ones above two limits.

    A connection waits for its client when it has no request, when a request is incomplete, or when
    the client has not read its answer.
    """

    def __init__(self, connections: int, held_bytes: int) -> None:
        """`connections` is the most that may be open, `held_bytes` the most that all bodies may take."""
        self._most_open = connections - SPARE_CONNECTIONS
        self._most_held = held_bytes
        self._since: WeakKeyDictionary[Any, float] = WeakKeyDictionary()  # Any: waitress's requests

    def close_excess(self, channels: Iterable[Channel], queue: Iterable[Channel], now: float) -> None:
        """Marks connections for closing: late ones, then the longest waiting ones while over a limit.

        `channels` are open; `queue` holds those that wait for a thread, also when their client has left.
        `now` is time.time().
        """
        staying = [channel for channel in channels if not channel.will_close]
        count = len(staying)
        held = sum(map(_body_bytes, {*staying, *queue}))
        waiting = [channel for channel in staying if channel.request or not channel.requests]
        for since, channel in sorted(
            ((self._waits_since(channel, now), channel) for channel in waiting),
            key=lambda pair: pair[0],
        ):
            late = channel.request is not None and now - since > RECEIVE_WITHIN_S
            too_many = count > self._most_open
            too_much = held > self._most_held and _body_bytes(channel) > 0
            if late or too_many or too_much:
                channel.will_close = True
                count -= 1
                held -= _body_bytes(channel)

    def _waits_since(self, channel: Channel, now: float) -> float:
        """Returns when its incomplete request was first seen, else the time of its last activity."""
        if channel.request is None:
            return float(channel.last_activity)
        return self._since.setdefault(channel.request, now)


def _body_bytes(channel: Channel) -> int:
    """Returns the bytes of its bodies, complete or not."""
    requests = [*channel.requests, channel.request]
    return sum(request.body_bytes_received for request in requests if request is not None)
