"""The decoding threads of a web process."""

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from unittest.mock import Mock

import pytest

from smallplates.errors import ConfigurationError
from smallplates.web.inference.served_model import all_or_error
from smallplates.web.inference.thread_pool import ThreadPool
from tests import servers

MEGABYTES_KEPT = """
import asyncio, re
from pathlib import Path
from PIL import Image
from smallplates.web.inference.thread_pool import ThreadPool
from smallplates.tasks.image.decode import ImageDecoder
from smallplates.models.description import ImagePipeline
from tests.pictures import encode

def own() -> int:
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

async def main() -> None:
    photo = encode(Image.new("RGBA", (4000, 4000), (200, 30, 30, 128)), "PNG")
    pipeline = ImagePipeline(resize=64, center_crop=64, mean=(0, 0, 0), std=(1, 1, 1))
    decoder, threads = ImageDecoder(pipeline, 50_000_000), ThreadPool(2)
    threads.start()
    before = own()
    for _ in range(2):
        await asyncio.gather(*(threads.run(lambda: decoder.decode(photo), False) for _ in range(2)))
    print(own() - before)
    threads.close()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_pictures_leave_no_memory_behind() -> None:
    """Each takes 64 MB, and as much again while transparency is laid over white."""
    done = servers.run(sys.executable, "-c", MEGABYTES_KEPT)
    assert int(done.stdout) < 50


class RefusedError(Exception):
    """What a weak reference can follow."""


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
def test_an_error_lets_go_what_was_sent() -> None:
    def refuse() -> None:
        raise RefusedError

    async def main() -> None:
        threads = ThreadPool(1)
        threads.start()
        kept = None
        try:
            await threads.run(refuse, bulk=False)
        except RefusedError as error:
            kept = weakref.ref(error)
        threads.close()
        await asyncio.sleep(0)  # the loop itself holds what it has woken this task up with
        assert kept is not None
        assert kept() is None

    asyncio.run(main())


@pytest.mark.usefixtures("no_collections")
def test_an_error_among_several_lets_go_what_was_sent() -> None:
    kept = None
    try:
        list(all_or_error([RefusedError()], [0]))
    except RefusedError as error:
        kept = weakref.ref(error)
    assert kept is not None
    assert kept() is None


def test_what_a_call_held_is_freed_on_its_thread() -> None:
    freed = []

    class Held:
        def __del__(self) -> None:
            freed.append(threading.current_thread().name)

    def work(_: Held) -> None:
        pass

    async def main() -> None:
        threads = ThreadPool(1)
        threads.start()
        await threads.run(partial(work, Held()), bulk=False)
        threads.close()

    asyncio.run(main())
    assert freed == ["decode-0"]


def test_large_calls_leave_threads_for_small_ones() -> None:
    async def main() -> None:
        threads, end = ThreadPool(1), threading.Event()
        threads.start()
        large = [asyncio.ensure_future(threads.run(end.wait, False, large=True)) for _ in range(3)]
        assert await threads.run(lambda: "done", bulk=True) == "done"
        assert not any(task.done() for task in large)
        end.set()
        assert await asyncio.gather(*large) == [True] * 3
        threads.close()

    asyncio.run(main())


def test_a_thread_that_the_system_refuses_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("no new thread")))
    with pytest.raises(ConfigurationError, match="a thread cannot be started: no new thread"):
        ThreadPool(1).start()
