"""How messages arrive on the gRPC port: calls a few at a time, streams in order, fields in bounds."""

import asyncio
import weakref
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from smallplates.errors import InvalidRequestError, OverloadedError, SlowBodyError
from smallplates.settings import Settings
from smallplates.web.api.datatypes import DTYPES
from smallplates.web.dialects.v2.grpc_messages import decode, typed_bytes
from smallplates.web.grpc import limits as grpc_limits
from smallplates.web.grpc.calls import Calls
from smallplates.web.grpc.generated import open_inference_pb2 as pb
from smallplates.web.grpc.limits import MAX_UNANSWERED, MessageReadLimiter, Streams, parse
from smallplates.web.metrics import Metrics
from tests.servers import until
from tests.unit.web.api.entries import tensors

pytestmark = pytest.mark.anyio

MB = 2**20


def limits(timeout_ms: int = 60_000) -> Settings:
    """Settings with which four messages may arrive at once, and four streams be open."""
    return Settings(body_timeout_ms=timeout_ms, max_body_bytes=4 * MB, max_buffered_bytes=16 * MB)


async def never() -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


async def at_once() -> bytes:
    return b"message"


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# calls


async def test_a_flood_that_never_ends_is_passed_by() -> None:
    reader = MessageReadLimiter(limits())
    reader.patience_s = 0.01
    slow = [asyncio.ensure_future(reader.read(never)) for _ in range(100)]
    await asyncio.sleep(0)
    assert await reader.read(at_once) == b"message"
    assert sum(task.done() for task in slow) <= 4  # the places that were taken first
    for task in slow:
        task.cancel()
    ends = await asyncio.gather(*slow, return_exceptions=True)
    assert {type(error) for error in ends} == {SlowBodyError, asyncio.CancelledError}
    assert await asyncio.gather(*(reader.read(at_once) for _ in range(50))) == [b"message"] * 50
    assert (reader._free, reader._waiting, reader._patient) == (4, [], {})


async def test_where_nobody_waits_nobody_hurries() -> None:
    reader, gate = MessageReadLimiter(limits()), asyncio.Event()
    reader.patience_s = 0

    async def slowly() -> bytes:
        await gate.wait()
        return b"late"

    four = [asyncio.ensure_future(reader.read(slowly)) for _ in range(4)]
    await turns(10)
    assert not any(task.done() for task in four)
    gate.set()
    assert await asyncio.gather(*four) == [b"late"] * 4


async def test_a_call_without_a_message() -> None:
    async def nothing() -> object:
        return grpc.aio.EOF

    with pytest.raises(InvalidRequestError, match="no message"):
        await MessageReadLimiter(limits()).read(nothing)


# streams


class Client:
    """A grpc.aio.ServicerContext; `sent` has what the client sends, None at the end."""

    def __init__(self, reads: bool = True) -> None:
        self.sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.received: list[bytes] = []
        self._reads = reads

    async def read(self) -> Any:
        message = await self.sent.get()
        return grpc.aio.EOF if message is None else message

    async def write(self, answer: bytes) -> None:
        """Never ends for a client that does not read."""
        if not self._reads:
            await never()
        self.received.append(answer)


async def test_answers_keep_their_order_and_few_are_under_way() -> None:
    client, gates = Client(), [asyncio.Event() for _ in range(40)]
    began: list[int] = []

    async def answer(message: bytes) -> bytes:
        began.append(int(message))
        await gates[int(message)].wait()
        return message

    serving = asyncio.ensure_future(Streams(limits()).serve(client, answer))
    for number in range(40):
        client.sent.put_nowait(str(number).encode())
    client.sent.put_nowait(None)
    await until(lambda: len(began) == MAX_UNANSWERED)
    for gate in reversed(gates[1:]):
        gate.set()
    await turns(100)
    assert client.received == []
    assert len(began) == MAX_UNANSWERED
    gates[0].set()
    await serving
    assert [int(answer) for answer in client.received] == list(range(40))


async def test_the_longest_idle_makes_room_and_the_busy_stay() -> None:
    streams, gate = Streams(limits()), asyncio.Event()

    async def answer(message: bytes) -> bytes:
        await gate.wait()
        return message

    clients = [Client() for _ in range(6)]
    serving = [asyncio.ensure_future(streams.serve(client, answer)) for client in clients[:4]]
    clients[0].sent.put_nowait(b"busy")
    await until(lambda: len(streams._idle) == 3)
    serving.append(asyncio.ensure_future(streams.serve(clients[4], answer)))
    with pytest.raises(OverloadedError, match="another stream needs the place"):
        await serving[1]
    for client in clients[2:5]:
        client.sent.put_nowait(b"busy")
    await until(lambda: not streams._idle)
    with pytest.raises(OverloadedError):
        await streams.serve(clients[5], answer)
    gate.set()
    for client in clients[:5]:
        client.sent.put_nowait(None)
    await asyncio.gather(*serving[:1], *serving[2:])
    assert [client.received for client in clients[:5]] == [[b"busy"], [], *[[b"busy"]] * 3]
    assert (streams._open, streams._idle) == (0, {})


async def test_a_message_in_the_same_moment_does_not_keep_a_stream_that_makes_room() -> None:
    async def same(message: bytes) -> bytes:
        return message

    streams, clients = Streams(limits()), [Client() for _ in range(5)]
    serving = [asyncio.ensure_future(streams.serve(client, same)) for client in clients[:4]]
    await until(lambda: len(streams._idle) == 4)
    await turns(10)  # until all of them read
    serving.append(asyncio.ensure_future(streams.serve(clients[4], same)))
    clients[0].sent.put_nowait(b"message")  # is read after the first stream was told to end
    with pytest.raises(OverloadedError, match="another stream needs the place"):
        async with asyncio.timeout(60):
            await serving[0]
    for client in clients[1:]:
        client.sent.put_nowait(None)
    await asyncio.gather(*serving[1:])
    assert (streams._open, streams._idle) == (0, {})


@pytest.mark.parametrize("reads", [True, False])
async def test_nothing_waits_for_ever(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    assert grpc_limits.IDLE_S > 60
    monkeypatch.setattr(grpc_limits, "IDLE_S", 0.05 if reads else 60)

    async def same(message: bytes) -> bytes:
        return message

    streams, client = Streams(limits(50)), Client(reads)
    client.sent.put_nowait(b"message")
    with pytest.raises(SlowBodyError, match="idle for too long"):
        await streams.serve(client, same)
    assert client.received == ([b"message"] if reads else [])
    assert (streams._open, streams._idle) == (0, {})


async def test_a_client_that_goes_away_cancels_its_requests() -> None:
    streams, client = Streams(limits()), Client()
    began: list[bytes] = []
    ends: list[bytes] = []

    async def answer(message: bytes) -> bytes:
        began.append(message)
        try:
            return await never()
        except asyncio.CancelledError:
            ends.append(message)
            raise

    serving = asyncio.ensure_future(streams.serve(client, answer))
    for message in (b"1", b"2"):
        client.sent.put_nowait(message)
    await until(lambda: len(began) == 2)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert sorted(ends) == [b"1", b"2"]
    assert (streams._open, streams._idle) == (0, {})


@pytest.mark.anyio
async def test_a_client_that_goes_away_during_an_answer_is_no_error_of_the_service() -> None:
    class Gone(Client):
        async def write(self, _: bytes) -> None:
            raise grpc.aio.InternalError("failed")

    async def same(message: bytes) -> bytes:
        return message

    streams, client = Streams(limits()), Gone()
    client.sent.put_nowait(b"message")
    with pytest.raises(asyncio.CancelledError):
        await streams.serve(client, same)
    assert (streams._open, streams._idle) == (0, {})


# fields


def tag(kind: object, name: str) -> bytes:
    """Returns the tag of a field that has a length."""
    return bytes([kind.DESCRIPTOR.fields_by_name[name].number << 3 | 2])  # type: ignore[attr-defined]


NOT_PACKED = (
    tag(pb.ModelInferRequest.InferInputTensor, "contents") + b"\x80\xf1\x04" + b"\x18\0" * 40_000
)
NOT_PACKED = tag(pb.ModelInferRequest, "inputs") + b"\x84\xf1\x04" + NOT_PACKED
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
        (pb.ModelInferRequest, NOT_PACKED),
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
    entry = tensors(datatype, (-1,), (LENGTH,))
    numbers = [largest, 0, 1, 1] * (ROWS * LENGTH // 4)
    request = pb.ModelInferRequest(inputs=[{"name": "i", "datatype": datatype}])
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
    request = pb.ModelInferRequest(inputs=[{"name": "i", "datatype": "INT64"}])
    request.inputs[0].shape.extend([1] * many)
    request.inputs[0].contents.int64_contents.extend([0] * many)
    data = request.SerializeToString()
    assert len(data) < 2 * many + 1000
    received = parse(pb.ModelInferRequest, data)
    assert typed_bytes(received) == 16 * many
    with pytest.raises(InvalidRequestError, match="shape"):
        decode(received, tensors("INT64", (1,)), ROWS)


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

    pipeline: Any = SimpleNamespace(service=SimpleNamespace(metrics=Metrics(), settings=limits()))
    with Calls(pipeline).record("/ModelInfer", Caller()) as outcome:
        refuse()
    assert outcome.error is not None
    assert kept[0]() is None
