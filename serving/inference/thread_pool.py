"""Threads that decode pictures, interactive ones first; called by `classifier.classify`.

A `ThreadPoolExecutor` would do but for two things: it knows no priorities, and handing over to it and
back takes more steps.
"""

import asyncio
import contextlib
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar, cast

T = TypeVar("T")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's <malloc.h>
LARGE_BYTES = 8 << 20


class Job(Generic[T]):
    """One call and who waits for it; `work` is dropped as soon as it is not needed."""

    __slots__ = ("future", "loop", "work")

    def __init__(self, work: Callable[[], T], loop: asyncio.AbstractEventLoop) -> None:
        self.work: Callable[[], T] | None = work
        self.loop = loop
        self.future: asyncio.Future[T] = loop.create_future()

    def run(self) -> None:
        """On a decoding thread."""
        work, self.work = self.work, None
        if work is None:
            return
        result: T | None = None
        error: Exception | None = None
        try:
            result = work()
        except Exception as caught:
            error = caught
        del work
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            self.loop.call_soon_threadsafe(self._finish, result, error)
        del error  # it knows this frame: each would keep the other, and a whole body, until a collection

    def _finish(self, result: T | None, error: Exception | None) -> None:
        future = self.future
        del self.future  # as `error` above
        if future.done():
            return
        if error is None:
            future.set_result(cast(T, result))
        else:
            future.set_exception(error)


class ThreadPool:
    """`count` threads, from `start` to `close`."""

    def __init__(self, count: int) -> None:
        self._queues: tuple[deque[Job[object]], deque[Job[object]]] = (deque(), deque())
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"decode-{index}", daemon=True)
            for index in range(count)
        ]

    def start(self) -> None:
        """Starts the threads."""
        keep_no_large_memory()
        for thread in self._threads:
            thread.start()

    async def run(self, work: Callable[[], T], bulk: bool) -> T:
        """Runs `work` on a thread; cancelled before its turn, it never runs."""
        job = Job(work, asyncio.get_running_loop())
        self._queues[bulk].append(job)  # type: ignore[arg-type]  # the queues hold jobs of any type
        self._tokens.put(True)
        try:
            return await job.future
        finally:
            job.work = None
            del job  # as `error` above

    def _work(self) -> None:
        interactive, bulk = self._queues
        while self._tokens.get():
            try:
                job = interactive.popleft()
            except IndexError:
                job = bulk.popleft()
            job.run()
            del job

    def close(self) -> None:
        """Ends the threads after what they are doing."""
        for _ in self._threads:
            self._tokens.put(False)
        for thread in self._threads:
            thread.join()


def keep_no_large_memory() -> None:
    """What a large picture takes goes back to the system when it is freed; a small one's stays at hand.

    By itself glibc raises the size from which on it asks the system for each block, up to 32 MB, and
    every thread's heap would keep the pixels of its largest picture for ever. With a size that is set,
    it would give back each small picture's pages, too, and ask for them again.
    """
    with contextlib.suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
