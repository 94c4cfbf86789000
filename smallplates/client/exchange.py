"""Sends a request within its time budget, and retries where that is safe and likely to help.

Retried, with random pauses that grow, so that many clients do not come back at once:
- no connection, or it broke before the answer was complete: a prediction changes nothing, so that
  at worst it is computed twice;
- 503 (or a gateway's 429) with Retry-After: not before that time.
All other failures are final. 4xx: the same request gets the same answer. 504 and a spent budget: no
time is left. 500: the same request would most likely fail again, and an image for which two workers
crashed or hung (`worker_crashed`, `worker_timeout`) would only cost more of them.
"""

import asyncio
import math
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TypeVar

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt
from tenacity.stop import stop_before_delay
from tenacity.wait import wait_random_exponential

from smallplates.client import answers
from smallplates.client.answers import Answer
from smallplates.client.calls import Call, RequestOptions
from smallplates.client.errors import (
    DeadlineExceededError,
    InvalidAnswerError,
    ServingClientError,
    UnreachableError,
)
from smallplates.client.options import Options
from smallplates.client.tcp import MAX_ANSWER_BYTES

KEEP_ALIVE_S = 4.0  # many servers close an idle connection after 5 s; ours waits longer
NOT_AS_DOCUMENTED = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
T = TypeVar("T")


class Exchange:
    """Pool of connections to one service; belongs to one event loop; `aclose` ends it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        headers = {"Accept-Encoding": "identity"}
        if options.api_key:
            headers["Authorization"] = f"Bearer {options.api_key}"
        self._http = httpx.AsyncClient(
            base_url=options.url,
            headers=httpx.Headers(headers, encoding="utf-8"),  # a key may have non-ASCII letters
            timeout=httpx.Timeout(None, connect=options.connect_timeout_s),  # the budget bounds the rest
            limits=httpx.Limits(
                max_connections=options.connections,
                max_keepalive_connections=options.connections,
                keepalive_expiry=KEEP_ALIVE_S,
            ),
            trust_env=options.uses_proxies,
        )
        self._backoff = wait_random_exponential(options.backoff_s, options.backoff_cap_s)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def ask(
        self,
        call: Call,
        read: Callable[[Answer], T],
        options: RequestOptions,
        start: float,
        tries: int | None = None,
    ) -> T:
        """Sends `call`, with retries; returns what `read` makes of the answer 200.

        `start` is the time of `time.monotonic()` from which the budget counts, `tries` replaces the
        option. Raises the error of the last try, and ValueError for an option that no request can carry.
        """
        deadline = start + options.get("timeout_s", self._options.timeout_s)
        headers = {**call.headers, "X-Request-ID": options.get("request_id") or uuid.uuid4().hex}
        if "priority" in options:
            headers["X-Priority"] = options["priority"]
        if "traceparent" in options:
            headers["traceparent"] = options["traceparent"]
        headers |= current_trace()
        retrying = AsyncRetrying(
            stop=stop_after_attempt(tries or self._options.tries)
            | stop_before_delay(max(0.0, deadline - time.monotonic())),
            wait=self._pause,
            retry=retry_if_exception(self._should_retry),
            reraise=True,
        )

        async def once() -> T:
            response = await self._send(call, headers, deadline)
            number = retrying.statistics["attempt_number"]
            latency_s = time.monotonic() - start
            answer = Answer(*response, tries=number, latency_s=latency_s)
            if answer.status != 200:
                raise answers.error(answer)
            try:
                return read(answer)
            except NOT_AS_DOCUMENTED as error:
                raise answers.unknown_format(answer) from error

        return await retrying(once)

    def _should_retry(self, error: BaseException) -> bool:
        if not isinstance(error, ServingClientError) or not error.retryable:
            return False
        return (error.retry_after_s or 0.0) <= self._options.retry_after_cap_s

    def _pause(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        least = error.retry_after_s if isinstance(error, ServingClientError) else None
        return (least or 0.0) + self._backoff(state)

    async def _send(
        self, call: Call, headers: Mapping[str, str], deadline: float
    ) -> tuple[int, dict[str, str], bytes]:
        """Sends the request once, and translates the exceptions of httpx; returns the first fields of
        its Answer.
        """
        remaining = deadline - time.monotonic()
        service_s = max(remaining - self._options.grace_s, remaining / 2)
        service_ms = max(1, math.ceil(min(service_s, self._options.service_timeout_s) * 1000))
        limit = {"X-Request-Timeout-Ms": str(service_ms)} if call.method == "POST" else {}
        request_id = headers["X-Request-ID"]
        try:
            async with asyncio.timeout(max(0.0, remaining)):
                request = self._http.build_request(
                    call.method, call.path, content=call.content or None, headers={**headers, **limit}
                )
                response = await self._http.send(request, stream=True)
                try:
                    return response.status_code, dict(response.headers), await read_all(response)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            text = "no answer arrived within the timeout"
            raise DeadlineExceededError(text, request_id=request_id) from error
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol) as error:
            raise ValueError(f"the request cannot be sent: {error}") from error
        except httpx.ConnectTimeout as error:
            text = f"{self._options.address} could not be reached in time"
            raise UnreachableError(text, request_id=request_id) from error
        except httpx.TransportError as error:
            text = f"no connection to {self._options.address}, or it broke: {error}".rstrip(": ")
            raise UnreachableError(text, request_id=request_id) from error


def current_trace() -> dict[str, str]:
    """Returns the headers of OpenTelemetry's current span; none in a program that does not use it."""
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry.trace.propagation import tracecontext

        tracecontext.TraceContextTextMapPropagator().inject(headers)
    return headers


async def read_all(response: httpx.Response) -> bytes:
    """Reads a body of up to MAX_ANSWER_BYTES. Raises InvalidAnswerError, httpx.TransportError."""
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            text = f"the answer has more than {MAX_ANSWER_BYTES} bytes"
            raise InvalidAnswerError(text, status=response.status_code)
    return bytes(content)
