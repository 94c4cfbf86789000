"""`smallplates.web.grpc.calls`: what a client learns of an error, and keys in metadata."""

import threading
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty

from smallplates.engine.statistics import Timings
from smallplates.errors import NotFoundError, RequestError
from smallplates.settings import Settings
from smallplates.web.grpc import calls
from smallplates.web.grpc.calls import CODES, Call, Calls, abort, authorization
from smallplates.web.grpc.limits import SMALL
from smallplates.web.http.request_context import RequestContext
from smallplates.web.inference.served_model import Answer, RequestOptions
from smallplates.web.inference.thread_pool import ThreadPool

pytestmark = pytest.mark.anyio


async def test_a_long_detail_does_not_hide_the_status() -> None:
    """As the names of hundreds of models, or what a Python class raises."""

    async def fail(_: object, context: Any) -> None:
        await abort(context, RequestContext("id", error=NotFoundError("€" * 100_000)))

    server = grpc.aio.server()
    handlers = {"Fail": grpc.unary_unary_rpc_method_handler(fail)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/test/Fail")(b"", timeout=60)
    finally:
        await server.stop(None)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert str(caught.value.details()).startswith("€€€")


@pytest.mark.parametrize("name", ["authorization", "api-key"])
def test_several_keys_are_refused(name: str) -> None:
    """A proxy might have checked another one."""
    pairs = [("authorization", "Bearer guest"), ("x-priority", "bulk"), ("x-priority", "bulk")]
    context = Mock(invocation_metadata=lambda: pairs)
    assert authorization(context) == "Bearer guest"
    pairs += [(name, "Bearer a"), (name, "Bearer a")]
    with pytest.raises(RequestError) as refused:
        authorization(context)
    assert CODES[refused.value.status] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("is_large", [False, True])
async def test_large_messages_and_answers_have_a_thread(
    is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def named(*_: object) -> Any:
        names.append(threading.current_thread().name)
        return [b"a", b"b"]

    threads = ThreadPool(1)
    pipeline = Mock(service=Mock(threads=threads, settings=Settings()))
    call = Call(pipeline, Mock(), Mock(), RequestOptions(1000))
    monkeypatch.setattr(calls, "parse", named)
    threads.start()
    try:
        await Calls(pipeline).parse(Empty, bytes(SMALL + is_large))
        answer = Answer(Mock(), [], [], Mock(Timings), is_large)
        assert await call.encode(named, Mock(), answer) == b"ab"
    finally:
        threads.close()
    assert set(names) == {"decode-0" if is_large else threading.current_thread().name}
