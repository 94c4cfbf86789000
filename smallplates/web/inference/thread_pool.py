"""Threads that preprocess requests, interactive ones first; used by `service.py`.

Two `ThreadPoolExecutor`s, one of them for bulk, would not let interactive requests go first. They would
also cost the web process 37 to 77 us more CPU time per request: a request to a tiny text model takes 510
to 620 us with these threads at 16 connections (medians of four runs of 20 to 60 interleaved pairs each).
"""

import asyncio
import contextlib
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar, cast

from smallplates.errors import ConfigurationError

T = TypeVar("T")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's <malloc.h>
LARGE_BYTES = 8 << 20


class Job(Generic[T]):
    """A call and the future for its result; `work` is dropped as soon as possible to free memory."""

    __slots__ = ("future", "work")

    def __init__(self, work: Callable[[], T], loop: asyncio.AbstractEventLoop) -> None:
        self.work: Callable[[], T] | None = work
        self.future: asyncio.Future[T] = loop.create_future()

    def run(self) -> None:
        """Calls `work` on the current thread and hands the result to the event loop."""
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
        with contextlib.suppress(RuntimeError):  # the loop has been closed, so nobody waits
            self.future.get_loop().call_soon_threadsafe(self._finish, result, error)
        del error  # breaks the reference cycle with this frame, which holds a request's body

    def _finish(self, result: T | None, error: Exception | None) -> None:
        future = self.future
        del self.future  # breaks the cycle between the future's error and this frame
        if future.done():
            return
        if error is None:
            future.set_result(cast(T, result))
        else:
            future.set_exception(error)


class Lane:
    """Calls that wait for the same threads."""

    def __init__(self) -> None:
        self.queues: tuple[deque[Job[object]], deque[Job[object]]] = (deque(), deque())
        self.tokens: SimpleQueue[bool] = SimpleQueue()

    def work(self) -> None:
        """Runs calls, on each of the lane's threads."""
        interactive, bulk = self.queues
        while self.tokens.get():
            try:
                job = interactive.popleft()
            except IndexError:
                job = bulk.popleft()
            job.run()
            del job


class ThreadPool:
    """Runs calls on `count` threads, from `start` to `close`, and large ones on as many others."""

    def __init__(self, count: int) -> None:
        self._lanes = Lane(), Lane()  # for small calls, and for large ones
        self._threads = [
            (lane, threading.Thread(target=lane.work, name=f"{name}-{index}", daemon=True))
            for lane, name in zip(self._lanes, ("decode", "large"), strict=True)
            for index in range(count)
        ]

    def start(self) -> None:
        """Starts the threads. Raises ConfigurationError if the system refuses one."""
        return_large_blocks()
        try:
            for _, thread in self._threads:
                thread.start()
        except RuntimeError as error:
            raise ConfigurationError(f"a thread cannot be started: {error}") from error

    async def run(self, work: Callable[[], T], bulk: bool, large: bool = False) -> T:
        """Runs `work` on a thread and returns its result; cancelled before its turn, it never runs."""
        job, lane = Job(work, asyncio.get_running_loop()), self._lanes[large]
        lane.queues[bulk].append(job)  # type: ignore[arg-type]  # the queues hold jobs of any type
        lane.tokens.put(True)
        del work  # so that its thread frees it
        try:
            return await job.future
        finally:
            job.work = None
            del job  # breaks the cycle between the job's error and this frame

    def close(self) -> None:
        """Stops the threads after the calls that they are running."""
        for lane, _ in self._threads:
            lane.tokens.put(False)
        for _, thread in self._threads:
            thread.join()


def return_large_blocks() -> None:
    """Makes glibc return freed blocks of 8 MB or more to the system and keep smaller ones.

    By default glibc raises that threshold to as much as 32 MB when large blocks are freed, so each
    thread's heap would keep the pixels of its largest image forever. With the mmap threshold alone, it
    would also return the pages of every small image and request them again.
    """
    with contextlib.suppress(AttributeError):  # C libraries other than glibc have no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
