"""Requests to containers: photos under way while something ends, and senders that never pause."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import requests

from tests.docker.containers import wait_until
from tests.pictures import encode, plate
from tests.servers import metric

SLOTS = 256


def slow_photo() -> bytes:
    """A PNG of three million pixels: it takes a core a tenth of a second or so."""
    return encode(plate(2000, 1500), "PNG", compress_level=1)


def post(url: str, photo: bytes, key: str | None = None) -> int:
    """The status that a photo is answered with; 0 without an answer."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        return requests.post(url, photo, headers=headers, timeout=60).status_code
    except requests.ConnectionError:
        return 0


@contextmanager
def under_way(address: str, api: str, count: int, least: int) -> Iterator[list[Future[int]]]:
    """Posts `count` photos to `address`; the block begins when the API has taken on at least `least`."""
    photo = slow_photo()
    with ThreadPoolExecutor(count) as executor:
        answers = [executor.submit(post, address, photo) for _ in range(count)]
        wait_until(lambda: metric(api, "serving_free_slots") <= SLOTS - least, "requests under way", 30)
        yield answers


class Senders:
    """Threads that post a photo again and again until the block ends; `statuses` counts the answers."""

    def __init__(self, url: str, photo: bytes, count: int) -> None:
        self.statuses: Counter[int] = Counter()
        self._url, self._photo = url, photo
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(count)]

    def __enter__(self) -> "Senders":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        while not self._stop.is_set():
            self.statuses[post(self._url, self._photo)] += 1

    def answered(self, more: int) -> None:
        goal = self.statuses.total() + more
        wait_until(lambda: self.statuses.total() >= goal, f"{more} more answers")
