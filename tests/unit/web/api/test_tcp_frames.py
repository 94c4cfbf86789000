"""The parser of TCP frames: whatever the bytes, a frame or one of the documented errors."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smallplates.client import tcp
from smallplates.errors import (
    InvalidJsonError,
    InvalidRequestError,
    InvalidTextError,
    PayloadTooLargeError,
)
from smallplates.web.api import tcp as frames

NUMBERS = st.integers(0, tcp.MAX_ID)
OPTIONS = st.builds(
    frames.Options,
    top_k=st.none() | st.integers(1, 2**62),
    timeout_ms=st.none() | st.integers(1, 2**62),
    priority=st.sampled_from(["interactive", "bulk"]),
    request_id=st.text(st.characters(codec="utf-8"), max_size=128),
    key=st.none() | st.text(st.characters(codec="utf-8"), max_size=512),
)


@given(NUMBERS, st.binary(max_size=300), OPTIONS)
def test_what_is_written_is_read(number: int, photo: bytes, options: frames.Options) -> None:
    frame = tcp.request_frame(number, photo, msgspec.to_builtins(options))
    read_number, options_bytes, body_bytes = frames.parse_head(frame[: frames.REQUEST.size])
    rest = frame[frames.REQUEST.size :]
    assert read_number == number
    assert len(rest) == options_bytes + body_bytes
    assert rest[options_bytes:] == photo
    assert frames.parse_options(rest[:options_bytes]) == options


@given(st.binary(min_size=frames.REQUEST.size, max_size=frames.REQUEST.size))
def test_any_ten_bytes(data: bytes) -> None:
    length, number, options_bytes = frames.REQUEST.unpack(data)
    if length < frames.AFTER_LENGTH + options_bytes:
        with pytest.raises(frames.BrokenFrameError):
            frames.parse_head(data)
        return
    read_number, read_bytes, body_bytes = frames.parse_head(data)
    assert (read_number, read_bytes) == (number, options_bytes)
    assert body_bytes >= 0
    assert frames.AFTER_LENGTH + options_bytes + body_bytes == length


@given(st.integers(0, 65535), st.integers(0, 10**10), st.integers(0, 10**10))
def test_sizes_are_bounded(options_bytes: int, photo_bytes: int, largest: int) -> None:
    if options_bytes > frames.MAX_OPTIONS_BYTES or photo_bytes > largest:
        with pytest.raises(PayloadTooLargeError):
            frames.check_sizes(options_bytes, photo_bytes, largest)
    else:
        frames.check_sizes(options_bytes, photo_bytes, largest)


@given(st.binary(max_size=frames.MAX_OPTIONS_BYTES))
def test_any_options(data: bytes) -> None:
    with contextlib.suppress(InvalidJsonError, InvalidTextError, InvalidRequestError):
        options = frames.parse_options(data)
        options.request_id.encode()
        (options.key or "").encode()


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[" * 1024,
        b'{"a":' * 200,
        b"\xff",
        b'{"top_k": 1',
        b'{"top_k": nan}',
        b"{}x",
        b'"\\ud800"',
    ],
)
def test_no_json(data: bytes) -> None:
    with pytest.raises((InvalidJsonError, InvalidTextError, InvalidRequestError)):
        frames.parse_options(data)


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"7",
        b"null",
        b'{"top_k": 0}',
        b'{"top_k": 1.5}',
        b'{"top_k": "3"}',
        b'{"timeout_ms": -1}',
        b'{"priority": "urgent"}',
        b'{"priority": "bulk\\n"}',
        b'{"unknown": 1}',
        b'{"key": 7}',
    ],
)
def test_other_options_than_documented(data: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        frames.parse_options(data)


def test_lone_surrogates_never_get_far() -> None:
    for field in ("key", "request_id"):
        data = b'{"%s": "\\ud800"}' % field.encode()
        with pytest.raises((InvalidJsonError, InvalidTextError, InvalidRequestError)):
            frames.parse_options(data)


@given(
    NUMBERS, st.integers(0, 65535), st.dictionaries(st.text(st.characters(codec="utf-8")), st.booleans())
)
def test_answers(number: int, status: int, content: dict[str, bool]) -> None:
    frame = frames.response(number, status, content)
    length, read_number, read_status = frames.RESPONSE.unpack(frame[: frames.RESPONSE.size])
    assert (read_number, read_status) == (number, status)
    assert length == len(frame) - 4
