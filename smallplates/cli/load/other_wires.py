"""Clients for protocols other than HTTP, for the loops of `loops.py`: gRPC, and frames over plain TCP.

Both have the interface of `http_client.Connections`: a request's bytes, built once, give an `Answer`.
"""

import asyncio
import typing

import grpc
import orjson

from smallplates.cli.load.http_client import LOST, Answer
from smallplates.cli.load.payloads import Protocol, Requests
from smallplates.client import tcp
from smallplates.web.grpc.generated import open_inference_pb2 as pb

INFER = "/inference.GRPCInferenceService/ModelInfer"


class WireClient(typing.Protocol):
    """Client of one server that carries any number of requests at a time."""

    async def ask(self, request: bytes) -> Answer:
        """Sends one request; returns `LOST` when the server cannot be reached."""

    async def close(self) -> None:
        """Closes the idle connections."""


def call(item: bytes | None, requests: Requests) -> bytes:
    """Returns the Open Inference Protocol's message for one item. Raises ValueError."""
    message = pb.ModelInferRequest(model_name=requests.model)
    for tensor in requests.tensors(item):
        message.raw_input_contents.append(requests.raw(tensor, item))
        del tensor["data"]
        message.inputs.add(**tensor)
    return bytes(message.SerializeToString())


def frame(item: bytes | None, options: dict[str, str | None], requests: Requests) -> bytes:
    """Returns one item's frame; its id is constant, as a connection has one request at a time.

    `options` are those of the frame; None leaves one out. Raises ValueError.
    """
    payload = requests.payload(item, Protocol.RAW)
    options = {**options, "content_type": payload.headers["Content-Type"]}
    return tcp.request_frame(1, payload.body, {name: value for name, value in options.items() if value})


class GrpcClient:
    """gRPC client; all calls share one channel, as gRPC clients do."""

    def __init__(self, host: str, port: int, key: str | None) -> None:
        self._address = f"{host}:{port}"
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._channel: grpc.aio.Channel | None = None

    async def ask(self, request: bytes) -> Answer:
        """Sends one call; the status is 200, or gRPC's own in lower case."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._address)
        try:
            await self._channel.unary_unary(INFER)(request, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            return Answer(error.code().name.lower(), b"")
        return Answer("200", b"")

    async def close(self) -> None:
        """Closes the channel."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


class TcpClient:
    """TCP client with kept connections, one request at a time on each, as in HTTP."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, request: bytes) -> Answer:
        """Sends one frame; the status is the answer frame's."""
        try:
            streams = self._idle.pop() if self._idle else await asyncio.open_connection(*self._address)
        except OSError:
            return LOST
        reader, writer = streams
        try:
            writer.write(request)
            length, _, status = tcp.RESPONSE.unpack(await reader.readexactly(tcp.RESPONSE.size))
            content = orjson.loads(await reader.readexactly(length - tcp.AFTER_LENGTH))
        except (OSError, ValueError, asyncio.IncompleteReadError):  # ValueError: not frames of ours
            writer.close()
            return LOST
        except asyncio.CancelledError:
            writer.close()  # its answer would be taken for the next one's
            raise
        self._idle.append(streams)
        wait = content.get("retry_after")
        return Answer(str(status), b"" if wait is None else b"\r\nretry-after: %d" % wait)

    async def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            self._idle.pop()[1].close()
