"""Many requests at once from a few threads, each on a connection of its own."""

import http.client
import json
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """One response; `tag` is what the sender attached to its request."""

    tag: int
    status: int
    body: dict[str, Any]
    retry_after: str | None

    @property
    def label(self) -> str | None:
        return self.body.get("prediction")


def send_all(
    url: str, pictures: Iterable[tuple[int, bytes]], senders: int, headers: dict[str, str] | None = None
) -> list[Answer]:
    """POSTs each picture to /predict; a closed connection is an error, not a reason to retry."""
    parts = urlsplit(url)
    source, lock = iter(pictures), threading.Lock()

    def next_picture() -> tuple[int, bytes] | None:
        with lock:
            return next(source, None)

    def send(_: int) -> Iterator[Answer]:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        while (item := next_picture()) is not None:
            tag, picture = item
            connection.request("POST", "/predict", picture, headers or {})
            response = connection.getresponse()
            body = json.loads(response.read())
            yield Answer(tag, response.status, body, response.headers["Retry-After"])
        connection.close()

    with ThreadPoolExecutor(senders) as executor:
        parts_of_all = executor.map(lambda index: list(send(index)), range(senders))
        return [answer for part in parts_of_all for answer in part]
