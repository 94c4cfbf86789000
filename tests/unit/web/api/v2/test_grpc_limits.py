"""How the gRPC port reads messages a few at a time, and bounds the number of their fields."""

import asyncio
import weakref
from collections.abc import Coroutine
from unittest.mock import Mock

import grpc
import pytest

from smallplates.errors import InvalidRequestError, SlowBodyError
from smallplates.settings import Settings
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.datatypes import DTYPES
from smallplates.web.api.v2.grpc import Calls
from smallplates.web.api.v2.grpc_generated import open_inference_pb2 as pb
from smallplates.web.api.v2.grpc_limits import MessageReadLimiter, options
from smallplates.web.api.v2.grpc_messages import decode, parse, typed_bytes
from smallplates.web.metrics import Metrics

MB = 2**20


def arrivals(timeout_ms: int = 60_000) -> MessageReadLimiter:
    """Returns a limiter that reads four messages at once."""
    return MessageReadLimiter(
        Settings(body_timeout_ms=timeout_ms, max_body_bytes=4 * MB, max_buffered_bytes=16 * MB)
    )


async def never() -> bytes:
    """Reads a message that never ends."""
    await asyncio.Event().wait()
    raise AssertionError


async def at_once() -> bytes:
    """Reads a message that has arrived."""
    return b"message"


def run(work: Coroutine[object, object, None]) -> None:
    """Runs a test; one that hangs fails after 20 s."""
    asyncio.run(asyncio.wait_for(work, 20))


def test_a_flood_that_never_ends_is_passed_by() -> None:
    async def main() -> None:
        reader = arrivals()
        reader.patience_s = 0.01
        slow = [asyncio.ensure_future(reader.read(never)) for _ in range(100)]
        await asyncio.sleep(0)
        assert await reader.read(at_once) == b"message"
        assert sum(task.done() for task in slow) <= 4  # the places that were taken first
        for task in slow:
            task.cancel()
        ended = await asyncio.gather(*slow, return_exceptions=True)
        assert {type(error) for error in ended} == {SlowBodyError, asyncio.CancelledError}
        assert await asyncio.gather(*(reader.read(at_once) for _ in range(50))) == [b"message"] * 50
        assert (reader._free, reader._waiting, reader._patient) == (4, [], {})

    run(main())


def test_where_nobody_waits_nobody_hurries() -> None:
    async def main() -> None:
        reader = arrivals()
        reader.patience_s = 0
        gate = asyncio.Event()

        async def slowly() -> bytes:
            await gate.wait()
            return b"late"

        four = [asyncio.ensure_future(reader.read(slowly)) for _ in range(4)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(task.done() for task in four)
        gate.set()
        assert await asyncio.gather(*four) == [b"late"] * 4

    run(main())


def test_all_time_out_in_the_end() -> None:
    async def main() -> None:
        reader = arrivals(20)
        tasks = [asyncio.ensure_future(reader.read(never)) for _ in range(30)]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in ended} == {SlowBodyError}
        assert (reader._free, reader._waiting, reader._patient) == (4, [], {})

    run(main())


def test_a_call_without_a_message() -> None:
    async def nothing() -> object:
        return grpc.aio.EOF

    async def main() -> None:
        with pytest.raises(InvalidRequestError, match="no message"):
            await arrivals().read(nothing)

    run(main())


def test_the_server_s_own_bounds() -> None:
    chosen = dict(options(Settings(max_body_bytes=5, grpc_max_connections=6), shares_port=True))
    assert chosen["grpc.max_receive_message_length"] == 5
    assert chosen["grpc.max_allowed_incoming_connections"] == 6
    assert chosen["grpc.so_reuseport"] == 1


def tag(kind: object, name: str) -> bytes:
    """Returns the tag of a field that has a length."""
    return bytes([kind.DESCRIPTOR.fields_by_name[name].number << 3 | 2])  # type: ignore[attr-defined]


SMALL_INPUT = tag(pb.ModelInferRequest, "inputs") + b"\0"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pb.ModelInferRequest, SMALL_INPUT * 40_000),
        (
            pb.ModelInferRequest,
            pb.ModelInferRequest(
                inputs=[
                    pb.ModelInferRequest.InferInputTensor(
                        parameters={str(index): pb.InferParameter() for index in range(20_000)}
                    )
                ]
            ).SerializeToString(),
        ),
        (pb.RepositoryModelLoadRequest, tag(pb.RepositoryModelLoadRequest, "parameters") + b"\0"),
        (pb.ServerLiveRequest, b"\x08\0" * 40_000),
    ],
)
def test_messages_of_many_fields_are_not_built(kind: type, message: bytes) -> None:
    many = message * (-(-80_000 // len(message)))
    with pytest.raises(InvalidRequestError, match="more than 16384 fields"):
        parse(kind, many)


def test_large_tensors_are_few_fields() -> None:
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"\x2a\0" * MB])
    tensor = request.inputs.add(name="input", datatype="FP32", shape=[2, 3])
    tensor.contents.fp32_contents.extend([0.5] * MB)
    tensor.parameters["a"].int64_param = -1
    assert parse(pb.ModelInferRequest, request.SerializeToString()) == request


ROWS, LENGTH = 64, 512


@pytest.mark.parametrize(
    ("datatype", "contents", "width", "largest"),
    [
        ("BOOL", "bool_contents", 1, True),
        ("UINT8", "uint_contents", 4, 255),
        ("UINT32", "uint_contents", 4, 2**32 - 1),
        ("UINT64", "uint64_contents", 8, 2**64 - 1),
        ("INT8", "int_contents", 4, -128),
        ("INT32", "int_contents", 4, -(2**31)),
        ("INT64", "int64_contents", 8, -(2**63)),
        ("FP32", "fp32_contents", 4, -0.5),
        ("FP64", "fp64_contents", 8, 0.1),
    ],
)
def test_many_packed_numbers_are_one_field(
    datatype: str, contents: str, width: int, largest: float
) -> None:
    spec = ColumnSpec("ids", datatype, (-1,), (LENGTH,))
    entry = CatalogEntry("texts", "1", True, 0, (spec,), (), Mock())
    numbers = [largest, 0, 1, 1] * (ROWS * LENGTH // 4)
    request = pb.ModelInferRequest(inputs=[{"name": "ids", "datatype": datatype}])
    request.inputs[0].shape.extend([ROWS, LENGTH])
    getattr(request.inputs[0].contents, contents).extend(numbers)
    received = parse(pb.ModelInferRequest, request.SerializeToString())
    assert typed_bytes(received) == 2 * 8 + width * ROWS * LENGTH
    call = decode(received, entry, ROWS)
    assert call.tensors is not None
    assert call.tensors[0].dtype == DTYPES[datatype]
    assert call.tensors[0].shape == (ROWS, LENGTH)
    assert call.tensors[0].ravel().tolist() == numbers


def test_packed_numbers_count_with_the_memory_that_they_take() -> None:
    """A byte may become eight; a message with far too many numbers is refused before an array is."""
    many = 4 * MB
    request = pb.ModelInferRequest(inputs=[{"name": "ids", "datatype": "INT64"}])
    request.inputs[0].shape.extend([1] * many)
    request.inputs[0].contents.int64_contents.extend([0] * many)
    data = request.SerializeToString()
    assert len(data) < 2 * many + 1000
    received = parse(pb.ModelInferRequest, data)
    assert typed_bytes(received) == 16 * many
    entry = CatalogEntry("texts", "1", True, 0, (ColumnSpec("ids", "INT64", (1,)),), (), Mock())
    with pytest.raises(InvalidRequestError, match="shape"):
        decode(received, entry, ROWS)


def test_numbers_that_are_not_packed_are_a_field_each() -> None:
    contents = b"\x18\0" * 40_000  # int64_contents
    message = (
        tag(pb.ModelInferRequest.InferInputTensor, "contents") + bytes([0x80, 0xF1, 0x04]) + contents
    )
    message = tag(pb.ModelInferRequest, "inputs") + bytes([0x84, 0xF1, 0x04]) + message
    assert len(pb.ModelInferRequest.FromString(message).inputs[0].contents.int64_contents) == 40_000
    with pytest.raises(InvalidRequestError, match="more than 16384 fields"):
        parse(pb.ModelInferRequest, message)


@pytest.mark.parametrize(
    "broken", [b"\x2a", b"\x2a" + b"\xff" * 10, b"\x2a\x08\x2a\x05", b"\x0e", b"\xff"]
)
def test_what_has_no_end_is_refused(broken: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        parse(pb.ModelInferRequest, SMALL_INPUT * 10_000 + b"\x3a\xff\xff\x03" + bytes(65535) + broken)


class Photo:
    """An object that a weak reference can follow."""


class Caller:
    """The part of gRPC's context that Calls uses."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"


def test_an_outcome_knows_nothing_of_what_was_sent() -> None:
    kept = []

    def refuse() -> None:
        photo = Photo()
        kept.append(weakref.ref(photo))
        try:
            raise ValueError
        except ValueError as error:
            raise InvalidRequestError("no") from error

    with Calls(Metrics()).recording("ModelInfer", Caller()) as outcome:
        refuse()
    assert outcome.error is not None
    assert kept[0]() is None
