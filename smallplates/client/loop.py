"""Event loop on a thread of its own, through which threads use the asyncio client."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Daemon thread with an event loop; starts with the first `submit`, ends with `close`."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs `work` on the loop; cancelling the future cancels it.

        Raises RuntimeError after `close`, and in a forked child, where the thread does not exist.
        """
        with self._guard:
            if self._closed or self._pid != os.getpid():
                work.close()
                raise RuntimeError("the client is closed, or belongs to another process")
            return asyncio.run_coroutine_threadsafe(work, self._event_loop())

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=run, args=(self._loop,), name="serving client", daemon=True
            )
            self._thread.start()
        return self._loop

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancels what is in flight, runs `last`, and ends the thread; does nothing the second time."""
        with self._guard:
            loop, thread = self._loop, self._thread
            started = loop is not None and self._pid == os.getpid() and not self._closed
            self._closed = True
        if not started or loop is None or thread is None:
            last.close()
            return
        asyncio.run_coroutine_threadsafe(shut_down(loop, last), loop)
        if thread is not threading.current_thread():  # the finalizer may run on it
            thread.join()


def run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs the loop until it is stopped; body of the thread."""
    loop.run_forever()
    loop.close()


async def shut_down(loop: asyncio.AbstractEventLoop, last: Coroutine[Any, Any, None]) -> None:
    """Cancels all other tasks, waits for them, awaits `last`, and stops the loop."""
    for task in other_tasks():
        task.cancel()
    try:
        await wait_for_others()
        await last
        await wait_for_others()
    finally:
        loop.call_soon(loop.stop)


def other_tasks() -> set[asyncio.Task[Any]]:
    """Returns all tasks of the loop except the current one."""
    return asyncio.all_tasks() - {asyncio.current_task()}


async def wait_for_others() -> None:
    """Waits until no other task is left; a generator that was left early starts further tasks."""
    await asyncio.sleep(0)
    while tasks := other_tasks():
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
