"""Bodies: their content codings, and the memory that they may take."""

import asyncio
import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect
from starlette.types import Message

from smallplates.errors import (
    InvalidBodyError,
    InvalidTextError,
    OverloadedError,
    PayloadTooLargeError,
    ServingError,
    UnsupportedMediaTypeError,
)
from smallplates.web.http.body import (
    AT_ONCE,
    MAX_MEMBERS,
    PART,
    STEP,
    Body,
    BodyReader,
    compress,
    content_coding,
    decode_json,
    dump_json,
    json_parts,
    json_response,
    respond,
    unpack,
)

MB = 1024 * 1024
NOISE = random.Random(1).randbytes(2 * STEP + 1)


async def sent(data: bytes) -> AsyncIterator[bytes]:
    yield data


def read(data: bytes, coding: str, most: int = 4 * MB) -> bytes:
    reader = BodyReader(most, 64 * MB, 20)

    async def main() -> bytes:
        with Body(reader, coding) as body:
            await body.receive(sent(data))
            content: bytes = await body.decompress()
            assert reader.buffered == body.size == len(content)
            return content

    try:
        return asyncio.run(main())
    finally:
        assert reader.buffered == 0


@pytest.mark.parametrize(
    ("headers", "coding"),
    [
        ([], None),
        ([""], None),
        (["identity"], None),
        (["gzip"], "gzip"),
        (["X-GZIP"], "x-gzip"),
        ([" identity, ,Deflate", ""], "deflate"),
    ],
)
def test_headers_are_one_list(headers: list[str], coding: str | None) -> None:
    assert content_coding(headers) == coding


@pytest.mark.parametrize("headers", [["br"], ["gzip, zstd"], ["gzip", "gzip"], ["*"]])
def test_other_codings_are_refused_with_those_that_are_accepted(headers: list[str]) -> None:
    with pytest.raises(UnsupportedMediaTypeError) as caught:
        content_coding(headers)
    assert caught.value.headers == {"Accept-Encoding": "gzip, deflate"}


@settings(max_examples=100)
@given(data=st.binary(max_size=300), coding=st.sampled_from(["gzip", "deflate"]), cut=st.integers(0, 9))
def test_a_compressed_body_is_what_was_compressed(data: bytes, coding: str, cut: int) -> None:
    body = b"".join(compress([data[:cut], data[cut:]], coding))
    assert b"".join(unpack(body, coding)) == data
    for broken in (body[: len(body) - cut - 1], body + b"x", *([data] if coding == "gzip" else [])):
        with pytest.raises(InvalidBodyError):
            b"".join(unpack(broken, coding))


@pytest.mark.parametrize("size", [0, 1, STEP - 1, STEP, STEP + 1, 2 * STEP, 2 * STEP + 1])
@pytest.mark.parametrize("source", [NOISE, bytes(len(NOISE))], ids=["noise", "zeros"])
def test_parts_of_any_size(source: bytes, size: int) -> None:
    data = source[:size]
    for coding, bits in (("gzip", 31), ("deflate", 15), ("deflate", -15)):
        body = zlib.compress(data, wbits=bits)
        parts = list(unpack(body, coding))
        assert b"".join(parts) == data
        assert max(map(len, parts)) <= STEP
        assert read(body, coding) == data


@pytest.mark.parametrize("coding", ["gzip", "x-gzip"])
def test_gzip_may_have_several_members(coding: str) -> None:
    parts = [b"", b"good ", NOISE, b"", b"film", b""]
    assert read(b"".join(map(gzip.compress, parts)), coding) == b"".join(parts)
    with pytest.raises(InvalidBodyError):
        read(zlib.compress(b"good ") + zlib.compress(b"film"), "deflate")


@pytest.mark.parametrize("level", range(10))
@settings(max_examples=50)
@given(data=st.binary(max_size=300), cut=st.integers(1, 9))
def test_a_deflate_body_may_lack_its_header(level: int, data: bytes, cut: int) -> None:
    body = zlib.compress(data, level, -zlib.MAX_WBITS)
    assert b"".join(unpack(body, "deflate")) == data
    for broken in (body[:-cut], body + b"x"):
        with pytest.raises(InvalidBodyError):
            b"".join(unpack(broken, "deflate"))


def test_members_are_bounded() -> None:
    empty = gzip.compress(b"")
    assert read(empty * MAX_MEMBERS, "gzip") == b""
    with pytest.raises(InvalidBodyError):
        read(empty * (MAX_MEMBERS + 1), "gzip")


@pytest.mark.parametrize(("coding", "bits"), [("gzip", 31), ("deflate", 15), ("deflate", -15)])
def test_a_body_that_unpacks_to_more_than_the_limit(coding: str, bits: int) -> None:
    body, most = zlib.compress(bytes(4 * MB + 1), wbits=bits), 4 * MB
    with pytest.raises(PayloadTooLargeError):
        read(body, coding, most)
    assert len(read(body, coding, most + 1)) == most + 1


def test_many_compressed_bodies_at_once_share_the_limit() -> None:
    """A hundred bodies of 4 MB that arrive as 4 KB: two fit, and no more than those are unpacked."""
    reader, bomb = BodyReader(4 * MB, 10 * MB, 20), gzip.compress(bytes(4 * MB))
    done: list[int] = []

    async def one(everybody: asyncio.Event) -> None:
        try:
            with Body(reader, "gzip") as body:
                await body.receive(sent(bomb))
                try:
                    done.append(len(await body.decompress()))
                except OverloadedError:
                    done.append(0)
                    raise
                finally:
                    if len(done) == 100:
                        everybody.set()
                await everybody.wait()
        except ServingError:
            pass

    async def main() -> None:
        everybody = asyncio.Event()
        await asyncio.gather(*(one(everybody) for _ in range(100)))

    tracemalloc.start()
    try:
        asyncio.run(main())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(done) == 100
    assert sum(done) <= 8 * MB
    assert peak < 10 * MB + 4 * MB + 4 * MB  # a copy of one body, and what zlib itself takes
    assert reader.buffered == 0


@pytest.mark.parametrize("text", [r"\ud83d\ude00", r"\uD83D\uDE00 x", r"\ud83d\ude00\uD83D\uDe00"])
def test_a_pair_of_surrogates_is_text(text: str) -> None:
    assert decode_json(msgspec.json.Decoder(str), f'"{text}"'.encode()) == json.loads(f'"{text}"')


@pytest.mark.parametrize(
    "text",
    [
        r"\ud83d",
        r"\uD83Dx     ",
        r"\ude00",
        r"\uDE00\uD83D",
        r"\ud83d\ud83d\ude00",
        r"\ud83d\ude00\uDE00",
    ],
)
def test_half_a_pair_of_surrogates_is_named(text: str) -> None:
    with pytest.raises(InvalidTextError, match="unpaired"):
        decode_json(msgspec.json.Decoder(str), f'"{text}"'.encode())


ROWS = np.arange(20 * PART + 7, dtype=np.float32)
LARGE_CONTENTS: list[Any] = [
    ROWS,
    ROWS.reshape(-1, 1),
    ROWS[: 3 * PART].reshape(3, 1, PART),
    ROWS[: 2 * PART].astype(np.float16).reshape(1, 1, 2 * PART),
    ROWS % 2 == 0,
    [ROWS, [], {}, ROWS[:5]],
    {"a": [1, 2**60], "b \u2603": ROWS, 'c"': {}, "d": [{"e": ROWS}]},
    [{"label": "x" * 40, "score": 0.5, "none": None}] * PART,
    ({"index": index, "embedding": ROWS[:900]} for index in range(50)),
    ["x" * 16 * PART, ["y" * 20] * PART],
    "x" * 17 * PART,
]


@pytest.mark.parametrize("content", LARGE_CONTENTS, ids=range(len(LARGE_CONTENTS)))
def test_the_parts_of_a_large_answer_are_its_json(content: Any) -> None:
    content = content if isinstance(content, list | dict | str | np.ndarray) else [*content]
    parts = [*json_parts(content)]
    assert msgspec.json.decode(b"".join(parts)) == msgspec.json.decode(dump_json(content))
    if isinstance(content, np.ndarray):
        assert max(part.count(b",") for part in parts) <= PART


@settings(max_examples=200)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=9), st.lists, max_leaves=9))
def test_a_small_answer_has_one_part(content: Any) -> None:
    assert [*json_parts(content)] == [dump_json(content)]
    assert bytes(json_response(content).body) == dump_json(content)


async def messages(scope: dict[str, Any], encoding: str | None = None) -> list[Message]:
    """What a large response sends."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing to receive")

    await respond(json_parts(ROWS), encoding=encoding)({"type": "http", **scope}, receive, send)
    return sent


@pytest.mark.parametrize("encoding", [None, "gzip"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_large_answer_is_sent_in_parts(version: str, encoding: str | None) -> None:
    """A client of HTTP/1.0 does not know chunks: it needs the length."""
    head, *rest = asyncio.run(messages({"http_version": version}, encoding))
    body, headers = b"".join(each.get("body", b"") for each in rest), dict(head["headers"])
    assert (b"content-length" in headers) is (version == "1.0")
    assert headers.get(b"content-length", b"%d" % len(body)) == b"%d" % len(body)
    assert headers.get(b"content-encoding", b"").decode() == (encoding or "")
    assert (b"".join(unpack(body, encoding)) if encoding else body) == dump_json(ROWS)
    assert len(body) > AT_ONCE or encoding


def test_others_have_their_turn_while_a_large_answer_is_sent() -> None:
    async def main() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task = asyncio.create_task(other())
        await messages({})
        task.cancel()
        return turns

    assert asyncio.run(main()) > 3


def test_nothing_is_encoded_for_a_client_that_has_left() -> None:
    async def main() -> None:
        gone = asyncio.get_running_loop().create_future()
        gone.set_result(None)
        with pytest.raises(ClientDisconnect):
            await messages({"disconnect": gone})

    asyncio.run(main())


def test_a_large_answer_counts_as_held_and_a_small_one_does_not() -> None:
    reader = BodyReader(MB, MB, 20)
    with Body(reader) as first, Body(reader) as second:
        first.grow(MB // 2)
        first.grow(MB)
        second.grow(1000)
        assert reader.buffered == MB
        with pytest.raises(OverloadedError):
            second.grow(MB)
    assert reader.buffered == 0
