"""The way of a request through every protocol: admitted, read, decoded, answered.

A protocol brings `decode`, which makes a `Call` of a body, and formats the answer.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import Request

from serving.http.request_context import RequestContext
from serving.inference.served_model import Answer, Input, RequestOptions, ServedModel
from serving.inference.service import InferenceService
from serving.protocols.admission import Admission, unless_disconnected
from serving.tensors import Array

LARGE = 64 * 1024
"""Bytes of JSON; decoding more is a thread's work."""


@dataclass
class Call:
    """What a request asks of the model: inputs of its task, or tensors."""

    model: ServedModel
    inputs: Sequence[Input] = ()
    tensors: Sequence[Array] | None = None
    top_k: int = 1
    """Candidates of each input."""

    timeout_us: int = 0
    """Time limit in the body, in microseconds; 0: none."""


C = TypeVar("C", bound=Call)


class Pipeline:
    """Passes the requests of one web process on to their models."""

    def __init__(self, service: InferenceService, admission: Admission) -> None:
        self.service = service
        self.admission = admission

    async def http(
        self,
        request: Request,
        model: ServedModel,
        decode: Callable[[bytes], C],
        signature: int = 0,
        inline_bytes: int | None = LARGE,
    ) -> tuple[C, Answer]:
        """Answers an HTTP request for a model; returns the call that `decode` made, too.

        Bodies of more than `inline_bytes` are decoded on a thread; None: none. Raises ServingError, and
        ClientDisconnect when the client leaves first.
        """
        options = self.admission.admit(request, model, signature)
        with model:
            async with self.admission.body(request) as body:
                if inline_bytes is None or len(body) <= inline_bytes:
                    call = decode(body)
                else:
                    call = await self.service.run_on_thread(partial(decode, body), options.bulk)
                answer = await unless_disconnected(request, self.answer(call, options))
        RequestContext.of(request).set_timings(answer.timings)
        return call, answer

    def answer(self, call: Call, options: RequestOptions) -> Coroutine[Any, Any, Answer]:
        """Answers a call. Raises what `ServedModel.predict` and `infer` raise."""
        options = options.within(call.timeout_us)
        if call.tensors is None:
            return call.model.predict(call.inputs, call.top_k, options)
        return call.model.infer(call.tensors, options)
