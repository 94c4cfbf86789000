"""One TCP connection: reads its frames, asks the classifier, answers as the answers come.

`tcp.py` makes it, and describes the frames. A task reads the heads of frames; each frame has a task of
its own, which reads the rest while the first one waits, classifies, and answers.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from serving.errors import (
    InvalidImageError,
    InvalidRequestError,
    PayloadTooLargeError,
    ServingError,
    SlowBodyError,
    UnauthorizedError,
)
from serving.http.access_log import CLIENT_GONE, RequestContext, choose_id, record, to_client_error
from serving.http.body import BodyReader
from serving.inference.active_model import EncodedImage
from serving.inference.service import InferenceService
from serving.protocols import tcp_frames as frames
from serving.protocols.admission import KeyCheck
from serving.protocols.native import prediction_json

MAX_UNANSWERED = 32
CHUNK_BYTES = 64 * 1024
LINGER_S = 2.0
FATAL = (PayloadTooLargeError, SlowBodyError, UnauthorizedError)  # nothing more is read after these


class ClientLeftError(Exception):
    """In the middle of a frame."""


class Connection:
    """From `start` until the client leaves, is idle, or sends what hides where its next frame begins."""

    def __init__(
        self,
        classifier: InferenceService,
        body_reader: BodyReader,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        settings = classifier.settings
        self._classifier = classifier
        self._settings = settings
        self._metrics = classifier.metrics
        self._body_reader = body_reader
        self._reader = reader
        self._writer = writer
        self._client: str = (writer.get_extra_info("peername") or ("",))[0]
        self._frame_timeout_s = settings.body_timeout_ms / 1000
        self._key = KeyCheck(settings.api_key)
        self._authorized = settings.api_key is None
        self._free = asyncio.Semaphore(MAX_UNANSWERED)
        self._unanswered = 0
        self._unread = 0
        """Bytes of the current frame that have not been read."""

        self._over = False
        """No further frame is read: the next one's beginning is unknown, or it is not wanted."""

        self._lingers = False
        """Whether the client may still be sending when the last answer goes out."""

        self._received = asyncio.Event()
        """Whether all of the newest frame has arrived."""

        self._newest: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """The task that serves it; whoever starts it closes the connection when the task is done."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    def leave(self) -> None:
        """The client has gone: nothing is computed for it any more."""
        self._task.cancel()

    def finish(self) -> asyncio.Task[None]:
        """Reads nothing more; the task ends when what was accepted is answered."""
        self._lingers = self._unanswered > 0
        if self._reading is not None:
            self._reading.cancel()
        if self._newest is not None and not self._received.is_set():
            self._newest.cancel()
        return self._task

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._reading = tasks.create_task(self._read_frames(tasks))
        if (self._lingers or self._over) and not self._writer.is_closing():
            await self._linger()

    async def _read_frames(self, tasks: asyncio.TaskGroup) -> None:
        while not self._over:
            await self._free.acquire()  # back-pressure: what is not read waits at the client
            head = await self._next_head()
            if head is None:
                return
            self._unanswered += 1
            self._received = asyncio.Event()
            self._newest = tasks.create_task(self._request(head, self._received))
            await self._received.wait()

    async def _next_head(self) -> frames.Head | None:
        """The next frame's first bytes; None when there is no next frame."""
        try:
            first = await self._first_byte()
            if not first:
                return None
            async with asyncio.timeout(self._frame_timeout_s):
                rest = await self._reader.readexactly(frames.REQUEST.size - 1)
            head = frames.parse_head(first + rest)
        except TimeoutError:
            await self._complain(SlowBodyError("the frame did not arrive in time"))
            return None
        except frames.BrokenFrameError as error:
            await self._complain(InvalidRequestError(f"the frame cannot be read: {error}"))
            return None
        except (asyncio.IncompleteReadError, OSError):
            return None
        self._unread = head.options_bytes + head.photo_bytes
        return head

    async def _first_byte(self) -> bytes:
        """Nothing when the connection is idle, or has ended."""
        while True:
            try:
                async with asyncio.timeout(self._settings.tcp_idle_timeout_s):
                    return await self._reader.read(1)
            except TimeoutError:
                if not self._unanswered or self._reader.exception():
                    return b""

    async def _complain(self, error: ServingError) -> None:
        """About a frame whose id is not known; the last answer."""
        self._over = True
        context = RequestContext(choose_id(None))
        with contextlib.suppress(ClientLeftError, OSError):
            await self._send(0, *failure(error, context))
        self._record(context, error.status)

    async def _request(self, head: frames.Head, received: asyncio.Event) -> None:
        """One frame, from its head to its answer."""
        context = RequestContext(choose_id(None))
        status = CLIENT_GONE
        try:
            answer = await self._answer(head, context, received)
            received.set()
            await self._send(head.id, *answer)
            status = answer[0]
        except (ClientLeftError, OSError):
            self._over = True
        finally:
            received.set()
            self._unanswered -= 1
            self._free.release()
            self._record(context, status)

    def _record(self, context: RequestContext, status: int) -> None:
        """The same series and the same line as over HTTP."""
        record(
            self._metrics,
            context,
            status,
            method="TCP",
            path="tcp",
            series="tcp",
            client=self._client,
            timed=True,
        )

    async def _answer(
        self, head: frames.Head, context: RequestContext, received: asyncio.Event
    ) -> tuple[int, dict[str, Any]]:
        """Status and content. Raises ClientLeftError, OSError."""
        try:
            return 200, await self._predict(head, context, received)
        except (ClientLeftError, OSError):
            raise
        except Exception as error:
            problem = error
        if not received.is_set():
            self._over |= isinstance(problem, FATAL)
            await self._skip()
        return failure(problem, context)

    async def _predict(
        self, head: frames.Head, context: RequestContext, received: asyncio.Event
    ) -> dict[str, Any]:
        """Raises ServingError, ClientLeftError."""
        frames.check_sizes(head, self._settings.max_body_bytes)
        options = await self._options(head)
        context.request_id = choose_id(options.request_id.encode("utf-8", "replace"))
        self._check(options, head)
        bulk = options.priority == "bulk"
        self._classifier.check_free_slot(bulk)
        async with self._body_reader.collect(self._photo()) as photo:
            received.set()
            wanted_ms = options.timeout_ms or self._settings.request_timeout_ms
            deadline = time.monotonic() + wanted_ms / 1000
            images = [EncodedImage(len(photo), lambda: photo)]
            prediction = await self._classifier.classify(images, options.top_k or 1, deadline, bulk)
        context.set_timings(prediction.timings)
        return {
            **prediction_json(prediction.tops[0], options.top_k is not None),
            "request_id": context.request_id,
            "ms": context.milliseconds,
        }

    async def _options(self, head: frames.Head) -> frames.Options:
        try:
            async with asyncio.timeout(self._frame_timeout_s):
                data = await self._reader.readexactly(head.options_bytes)
        except TimeoutError as error:
            raise SlowBodyError("the options did not arrive in time") from error
        except asyncio.IncompleteReadError as error:
            raise ClientLeftError from error
        self._unread -= head.options_bytes
        return frames.parse_options(data)

    def _check(self, options: frames.Options, head: frames.Head) -> None:
        """Raises UnauthorizedError, InvalidRequestError or InvalidImageError."""
        if not self._authorized:
            self._authorized = self._key.matches((options.key or "").encode())
        if not self._authorized:
            raise UnauthorizedError("a valid API key is needed: `key` in the first frame's options")
        check_at_most(options.top_k, "top_k", len(self._classifier.active.labels))
        check_at_most(options.timeout_ms, "timeout_ms", self._settings.request_timeout_ms)
        if not head.photo_bytes:
            raise InvalidImageError("the frame has no photo")

    async def _photo(self) -> AsyncIterator[bytes]:
        """The rest of the frame. Raises ClientLeftError."""
        while self._unread:
            chunk = await self._reader.read(min(self._unread, CHUNK_BYTES))
            if not chunk:
                raise ClientLeftError
            self._unread -= len(chunk)
            yield chunk

    async def _skip(self) -> None:
        """What is left of a frame that was refused is read, and not kept."""
        if self._over:
            return
        try:
            async with asyncio.timeout(self._frame_timeout_s):
                async for _ in self._photo():
                    pass
        except TimeoutError:
            self._over = True

    async def _send(self, number: int, status: int, said: dict[str, Any]) -> None:
        """Waits until the client has taken enough of it; a client that does not is cut off."""
        if self._writer.is_closing():  # reset in this moment; uvloop would raise RuntimeError
            raise ClientLeftError
        self._writer.write(frames.response(number, status, said))
        try:
            async with asyncio.timeout(self._frame_timeout_s):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise ClientLeftError from None
        if self._writer.is_closing():
            raise ClientLeftError

    async def _linger(self) -> None:
        """Lets the client read its last answers: unread bytes at the close would destroy them."""
        with contextlib.suppress(OSError, TimeoutError):
            self._writer.write_eof()
            async with asyncio.timeout(LINGER_S):
                while await self._reader.read(CHUNK_BYTES):
                    pass


def failure(error: Exception, context: RequestContext) -> tuple[int, dict[str, Any]]:
    """Status and content."""
    answer = to_client_error(error, context)
    return answer.status, frames.complaint(answer, context.request_id)


def check_at_most(value: int | None, name: str, largest: int) -> None:
    """Raises InvalidRequestError."""
    if value is not None and value > largest:
        raise InvalidRequestError(f"{name} must be a whole number from 1 to {largest}")
