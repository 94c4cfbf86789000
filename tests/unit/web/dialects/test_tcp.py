"""TCP connections without a socket: whatever the bytes, answers with the documented statuses."""

import asyncio
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from smallplates.client.tcp import MAX_ID, request_frame
from smallplates.errors import InvalidImageError
from smallplates.settings import Settings
from smallplates.web.api.pipeline import Pipeline
from smallplates.web.dialects import tcp
from smallplates.web.inference.thread_pool import ThreadPool

CLASSES = 3
BODY = b"picture"
TEXTS = st.text(st.characters(codec="utf-8"), max_size=128)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.integers(1, CLASSES),
        "timeout_ms": st.integers(1, 2**62),
        "priority": st.sampled_from(["interactive", "bulk"]),
        "request_id": TEXTS,
        "key": TEXTS,
    },
)


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """Does not wait for a client that is not there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tcp, "LINGER_S", 0.001)
        yield


class Service:
    """A connection to a service whose only model has three classes."""

    def __init__(self, **fields: Any) -> None:
        limits = {"tcp_idle_timeout_s": 0.001, "body_timeout_ms": 1, "max_body_bytes": 1000}
        self.service = MagicMock(settings=Settings(**limits | fields))
        self.model = self.service.model()
        self.model.task.usual_candidates = 1
        self.model.task.most_candidates, self.model.task.media_types = CLASSES, ("",)
        self.model.admit().__aexit__.return_value = False
        timings = SimpleNamespace(decode_s=0.0, queue_s=0.0, infer_s=0.0, truncated=False)
        answer = MagicMock(timings=timings, candidates=[[]], is_large=False)
        answer.task.to_json.return_value = {"prediction": "a"}
        self.model.predict = AsyncMock(return_value=answer)
        self.writer = MagicMock(drain=AsyncMock())
        self.writer.is_closing = lambda: bool(self.writer.close.called)
        self.reader: asyncio.StreamReader

    def connect(self) -> tcp.Connection:
        """Returns a new connection; needs an event loop."""
        self.reader = asyncio.StreamReader()
        return tcp.Connection(tcp.TcpServer(Pipeline(self.service)), self.reader, self.writer)

    def answers(self, data: bytes) -> list[tuple[int, int, Any]]:
        """Sends bytes, waits until the connection is idle, and returns ids, statuses and objects."""

        async def serve() -> None:
            connection = self.connect()
            self.reader.feed_data(data)
            await connection.run()

        asyncio.run(serve())
        frames = []
        for call in self.writer.write.call_args_list:
            length, number, status = tcp.FRAME.unpack(call.args[0][:10])
            assert length == len(call.args[0]) - 4
            frames.append((number, status, json.loads(call.args[0][10:])))
        assert self.service.metrics.requests.labels.call_count == len(frames)
        return frames


@settings(max_examples=50)
@given(st.integers(0, MAX_ID), st.binary(max_size=300), OPTIONS)
def test_frames_are_read_as_they_are_written(number: int, body: bytes, options: dict[str, Any]) -> None:
    service = Service()
    ((answered, status, content), *_) = service.answers(request_frame(number, body, options) * 2)
    assert (answered, status, content["prediction"]) == (number, 200, "a")
    inputs, top_k, limits, _ = service.model.predict.call_args.args
    assert (inputs[0].size, top_k) == (len(body), options.get("top_k", 1))
    assert limits.bulk is (options.get("priority") == "bulk")
    assert limits.timeout_ms == min(options.get("timeout_ms", 30_000), 30_000)


@settings(max_examples=200)
@given(
    st.binary(max_size=100) | st.just(request_frame(7, BODY, {"top_k": 2, "request_id": "r"})),
    st.dictionaries(st.integers(0, 60), st.integers(0, 255)),
)
@example(bytes(10), {})
def test_any_bytes_are_answered_or_refused(data: bytes, changes: dict[int, int]) -> None:
    changed = bytearray(data)
    for place, value in changes.items():
        if data:
            changed[place % len(data)] = value
    for _, status, content in Service().answers(bytes(changed)):
        assert status in (200, 400, 408, 413, 415, 422)
        assert content["request_id"]


MISTAKES: dict[tuple[int, str], tuple[bytes, ...]] = {
    (400, "invalid_json"): (
        *(b"{", b"[" * 1024, b'{"a":' * 200, b"\xff", b'{"top_k": 1', b'{"top_k": nan}', b"{}x"),
    ),
    (400, "invalid_text"): (b'"\\ud800"', b'{"key": "\\ud800"}', b'{"request_id": "\\ud800"}'),
    (422, "invalid_request"): (
        *(b"[]", b"7", b"null", b'{"top_k": 0}', b'{"top_k": 1.5}', b'{"top_k": "3"}', b'{"top_k": 4}'),
        *(b'{"timeout_ms": -1}', b'{"timeout_ms": 0}', b'{"top_k": 123456789012345678901234567890}'),
        *(b'{"priority": "urgent"}', b'{"priority": "bulk\\n"}', b'{"unknown": 1}', b'{"key": 7}'),
    ),
}
"""Status and code -> options."""


def frame(body: bytes, options: bytes = b"") -> bytes:
    """A request frame with options of any kind."""
    return tcp.FRAME.pack(6 + len(options) + len(body), 7, len(options)) + options + body


@pytest.mark.parametrize(
    ("error", "options"), [(error, options) for error, all_ in MISTAKES.items() for options in all_]
)
def test_a_mistake_costs_one_answer_and_not_the_connection(
    error: tuple[int, str], options: bytes
) -> None:
    wrong, right = Service().answers(frame(BODY, options) + request_frame(8, BODY, {}))
    assert (wrong[0], wrong[1], wrong[2]["code"]) == (7, *error)
    assert set(wrong[2]) == {"detail", "code", "request_id"}
    assert right[:2] == (8, 200)


@pytest.mark.parametrize(
    ("sent", "number", "status", "code"),
    [
        (tcp.FRAME.pack(0, 7, 0), 0, 422, "invalid_request"),
        (tcp.FRAME.pack(5, 7, 0), 0, 422, "invalid_request"),
        (tcp.FRAME.pack(8, 7, 3), 0, 422, "invalid_request"),
        (tcp.FRAME.pack(6, 7, 65535), 0, 422, "invalid_request"),
        (bytes(400_000), 0, 422, "invalid_request"),
        (b"\0\0\0\5", 0, 422, "invalid_request"),  # at once: there can be no head behind it
        (tcp.FRAME.pack(2**32 - 1, 7, 0), 7, 413, "payload_too_large"),
        (tcp.FRAME.pack(2**31, 7, 0) + bytes(400_000), 7, 413, "payload_too_large"),
        (tcp.FRAME.pack(6 + 2000, 7, 2000), 7, 413, "payload_too_large"),
        (frame(bytes(1001)), 7, 413, "payload_too_large"),
        (frame(BODY, b" " * 1025), 7, 413, "payload_too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", int.from_bytes(b"/ HT"), 413, "payload_too_large"),
        (b"\0\0", 0, 408, "request_timeout"),
        (frame(BODY)[:10], 7, 408, "request_timeout"),
        (frame(BODY)[:-1], 7, 408, "request_timeout"),
        (frame(b"", b"{}" + b" " * 100)[:-1], 7, 408, "request_timeout"),
        (frame(BODY, b"{")[:-1], 7, 400, "invalid_json"),
    ],
)
def test_a_broken_frame_is_told_so_and_ends_the_connection(
    sent: bytes, number: int, status: int, code: str
) -> None:
    service = Service()
    answers = service.answers(sent)
    assert [(n, answered, content["code"]) for n, answered, content in answers] == [
        (number, status, code)
    ]
    assert service.writer.close.called


@pytest.mark.parametrize("key", [{}, {"key": ""}, {"key": "Sesame"}, {"key": "sesame "}])
def test_a_wrong_key_ends_the_connection(key: dict[str, Any]) -> None:
    service = Service(api_key="sesame")
    ((_, status, content),) = service.answers(request_frame(7, BODY, key) * 2)
    assert (status, content["code"]) == (401, "unauthorized")
    assert service.writer.close.called
    right = request_frame(7, BODY, {"key": "sesame"}) * 2
    assert [answer[1] for answer in Service(api_key="sesame").answers(right)] == [200, 200]


def test_the_largest_body_is_taken() -> None:
    assert [answer[:2] for answer in Service().answers(frame(bytes(1000)))] == [(7, 200)]


def test_a_client_that_has_reset_its_connection_is_no_error() -> None:
    for data in (request_frame(1, BODY, {"top_k": 99}), request_frame(1, BODY, {}), bytes(10)):
        service = Service()
        service.writer.is_closing = lambda: True
        service.writer.write.side_effect = RuntimeError("the handler is closed")  # as uvloop's

        async def serve(service: Service = service, data: bytes = data) -> None:
            connection = service.connect()
            service.reader.feed_data(data)
            await connection.run()

        asyncio.run(serve())
        assert service.service.metrics.requests.labels.call_count == 1


@pytest.mark.parametrize("admitted", [True, False])
def test_a_body_that_arrives_at_shutdown(admitted: bool) -> None:
    service, data = Service(tcp_idle_timeout_s=20, body_timeout_ms=20_000), request_frame(1, BODY, {})
    service.model.predict.side_effect = InvalidImageError("so it was read")
    head = len(data) - 1 if admitted else 3

    async def serve() -> None:
        connection = service.connect()
        service.reader.feed_data(data[:head])
        task = asyncio.ensure_future(connection.run())
        for _ in range(20):
            await asyncio.sleep(0)
        assert service.model.refuse_if_full.called is admitted
        connection.finish()
        service.reader.feed_data(data[head:] + data)
        service.reader.feed_eof()
        await task

    asyncio.run(serve())
    assert service.model.predict.call_count == admitted
    assert service.writer.write.call_count == admitted


@pytest.mark.parametrize("is_large", [False, True])
def test_a_large_answer_is_written_on_a_thread(is_large: bool) -> None:
    service, names = Service(), []
    threads = service.service.threads = ThreadPool(1)
    answer = service.model.predict.return_value
    answer.is_large = is_large

    def to_json(*_: object) -> dict[str, str]:
        names.append(threading.current_thread().name)
        return {"prediction": "a"}

    answer.task.to_json = to_json
    threads.start()
    ((_, status, content),) = service.answers(request_frame(7, BODY, {}))
    threads.close()
    assert (status, content["prediction"]) == (200, "a")
    assert names == ["decode-0" if is_large else threading.current_thread().name]
