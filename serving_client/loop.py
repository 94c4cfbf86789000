"""An event loop on a thread of its own, so that threads can use the asyncio client."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Starts with the first `submit`, ends with `close`; a daemon, which keeps no program alive."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs `work` there; cancelling the future cancels it.

        Raises RuntimeError after `close`, and in a forked child, where the thread does not exist.
        """
        with self._guard:
            if self._closed or self._pid != os.getpid():
                work.close()
                raise RuntimeError("the client is closed, or belongs to another process")
            return asyncio.run_coroutine_threadsafe(work, self._running())

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=run, args=(self._loop,), name="serving client", daemon=True
            )
            self._thread.start()
        return self._loop

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancels what is under way, runs `last`, and ends the thread; once."""
        with self._guard:
            loop, thread = self._loop, self._thread
            started = loop is not None and self._pid == os.getpid() and not self._closed
            self._closed = True
        if not started or loop is None or thread is None:
            last.close()
            return
        asyncio.run_coroutine_threadsafe(end(loop, last), loop)
        if thread is not threading.current_thread():  # where garbage is collected, by chance
            thread.join()


def run(loop: asyncio.AbstractEventLoop) -> None:
    """The thread."""
    loop.run_forever()
    loop.close()


async def end(loop: asyncio.AbstractEventLoop, last: Coroutine[Any, Any, None]) -> None:
    """The last task of a loop."""
    for task in others():
        task.cancel()
    try:
        await over()
        await last
        await over()
    finally:
        loop.call_soon(loop.stop)


def others() -> set[asyncio.Task[Any]]:
    """All tasks of the loop but the current one."""
    return asyncio.all_tasks() - {asyncio.current_task()}


async def over() -> None:
    """Returns when there is no other task: a generator left early becomes one, and then those in it."""
    await asyncio.sleep(0)
    while tasks := others():
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
