"""Asks the API through `smallplates.client` and translates its errors into the page's own.

The errors are subclasses of `ApiError` in errors.py.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from flask_app.errors import (
    ApiAnswerError,
    ApiCancelledError,
    ApiError,
    ApiGarbageError,
    ApiTimeoutError,
    ApiUnreachableError,
)
from flask_app.settings import Settings
from smallplates.client import (
    Client,
    DeadlineExceededError,
    InvalidAnswerError,
    PredictOptions,
    ServingClientError,
    answers,
    calls,
    triton,
)
from smallplates.client.answers import Answer as HttpAnswer
from smallplates.client.exchange import Exchange
from smallplates.client.loop import LoopThread
from smallplates.client.options import Options

TOP_K = 5
STATUSES_WITHOUT_CODE = (400, 404)
PASSED_ON = ("Server-Timing", "X-Request-ID", "Retry-After", "X-Input-Truncated")
STATUS_TIMEOUT_S = 2.0
TIMEOUT_GRACE_S = 2.0  # for the API's own 504 to arrive
CHECK_CLIENT_S = 0.1
T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """Answer of the API: its JSON, the ranking in it, and the headers for the browser."""

    body: Mapping[str, Any]  # Any: JSON
    top: tuple[tuple[str, float], ...]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class JsonAnswer:
    """Answer of the API to JSON: its own JSON, and the headers for the browser."""

    body: Any  # JSON
    headers: Mapping[str, str]


class ApiClient:
    """Client of one API with a pool of connections; threads may share it.

    An image is sent once more after a 503 with a short Retry-After, or when the connection broke.
    """

    def __init__(self, settings: Settings) -> None:
        key = settings.api_key
        self._native = settings.api_protocol == "native"
        self._budget_s = settings.request_timeout_s + TIMEOUT_GRACE_S
        options: dict[str, Any] = {  # Any: of all their types
            "protocol": settings.api_protocol,
            "api_key": key.get_secret_value() if key else None,
            "timeout_s": self._budget_s,
            "service_timeout_s": settings.request_timeout_s,
            "grace_s": TIMEOUT_GRACE_S,
            "connect_timeout_s": settings.connect_timeout_s,
            "tries": 2,
            "retry_after_cap_s": settings.retry_after_cap_s,
            "connections": settings.threads,
            "trust_env": False,  # no proxy is meant for the API
        }
        self._client = Client(settings.api_url, **options)
        self._exchange = Exchange(Options(settings.api_url, **options))
        self._thread = LoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the pooled connections."""
        self._client.close()
        self._thread.close(self._exchange.aclose())

    def predict(
        self,
        photo: bytes,
        request_id: str | None = None,
        client_left: Callable[[], bool] = lambda: False,
        traceparent: str | None = None,
        top_k: int = TOP_K,
        model: str | None = None,
    ) -> Answer:
        """Asks for the best classes of an image file. Raises ApiError.

        `client_left` tells whether the browser has disconnected, which ends the request to the API.
        `model` is the name of one of several models.
        """
        options: PredictOptions = {"top_k": top_k, "base64": self._native}
        if model:
            options["model"] = model
        if request_id:
            options["request_id"] = request_id
        if traceparent:
            options["traceparent"] = traceparent
        try:
            with translated():
                prediction = wait_for(lambda: self._client.submit(photo, **options), client_left)
        except ApiAnswerError as error:
            if self._native or error.status not in STATUSES_WITHOUT_CODE:
                raise
            raise self._explain_refusal(error) from error
        top = tuple((score.label, score.probability) for score in prediction.top)
        return Answer(prediction.body, top, passed_on(prediction.headers))

    def ask(
        self,
        path: str,
        content: bytes,
        request_id: str | None = None,
        client_left: Callable[[], bool] = lambda: False,
        traceparent: str | None = None,
    ) -> JsonAnswer:
        """Posts JSON; returns the JSON of the answer. Raises ApiError; the rest is as in `predict`."""
        call = calls.Call("POST", path, {"Content-Type": "application/json"}, content)

        def start() -> Future[tuple[JsonAnswer, int]]:
            deadline = time.monotonic() + self._budget_s
            work = self._exchange.ask(
                call, read_json, deadline=deadline, request_id=request_id, traceparent=traceparent
            )
            return self._thread.submit(work)

        with translated():
            return wait_for(start, client_left)[0]

    def tensors(self, name: str) -> Mapping[str, Any]:  # Any: JSON
        """Returns a model's inputs and outputs, as the Open Inference Protocol says. Raises ApiError."""
        return self._get(f"/v2/models/{name}")

    def _explain_refusal(self, error: ApiAnswerError) -> ApiError:
        """Tells what Triton's 400 or 404 means: a bad image, or a model that is not loaded."""
        reason = self.not_ready()
        if reason is not None:
            return ApiAnswerError(503, {"code": "unavailable", "detail": reason}, error.headers)
        return error.with_code("invalid_image")

    def model(self, name: str | None = None) -> Mapping[str, Any]:  # Any: JSON
        """Returns the answer of `GET /model`, or of `GET /model/NAME`. Raises ApiError."""
        if name:
            return self._get(calls.of_model("/model", name))
        with translated():
            return self._client.model(timeout_s=STATUS_TIMEOUT_S).body

    def _get(self, path: str) -> Mapping[str, Any]:  # Any: JSON
        deadline = time.monotonic() + STATUS_TIMEOUT_S
        work = self._exchange.ask(calls.get(path), read_json, deadline=deadline)
        with translated():
            body = self._thread.submit(work).result()[0].body
        return body if isinstance(body, dict) else {}

    def not_ready(self) -> str | None:
        """Returns None when the API is ready, else its reason. Raises ApiError."""
        with translated():
            readiness = self._client.ready(timeout_s=STATUS_TIMEOUT_S)
        return None if readiness else readiness.detail


def read_json(answer: HttpAnswer) -> JsonAnswer:
    """Reads an answer of any shape, of either protocol. Raises ServingClientError."""
    if answer.status != 200:
        raise triton.error(answer)
    body = answer.json()
    if body is None and answer.content.strip() != b"null":
        raise answers.undocumented(answer)
    return JsonAnswer(body, passed_on(answer.headers))


def wait_for(start: Callable[[], Future[T]], client_left: Callable[[], bool]) -> T:
    """Starts a call and returns its result; cancels it when `client_left()` is true.

    Raises what the call raises, and CancelledError. Waitress tells of a disconnect only when asked,
    so it is asked before the start and every CHECK_CLIENT_S seconds.
    """
    if client_left():
        raise CancelledError
    future = start()
    while not wait([future], CHECK_CLIENT_S).done:
        if client_left():
            future.cancel()
    return future.result()


@contextmanager
def translated() -> Iterator[None]:
    """Raises the page's errors instead of those of `smallplates.client`."""
    try:
        yield
    except CancelledError as error:
        raise ApiCancelledError from error
    except ServingClientError as error:
        if error.body and error.status is not None:
            body = {"code": error.code, "detail": error.detail, **error.body}
            raise ApiAnswerError(error.status, body, passed_on(error.headers)) from error
        if isinstance(error, InvalidAnswerError):
            raise ApiGarbageError(error.detail) from error
        if isinstance(error, DeadlineExceededError):
            raise ApiTimeoutError from error
        raise ApiUnreachableError("no connection to the API") from error


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the API's headers that the browser gets."""
    return {name: headers[name.lower()] for name in PASSED_ON if name.lower() in headers}
