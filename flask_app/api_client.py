"""Asks the API through `smallplates.client` and translates its errors into the page's own."""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flask_app.errors import ApiAnswerError, ApiError
from flask_app.settings import Settings
from smallplates.client import (
    Client,
    DeadlineExceededError,
    InvalidAnswerError,
    PredictOptions,
    RequestOptions,
    Result,
    ServingClientError,
    answers,
    calls,
)

STATUSES_WITHOUT_CODE = (400, 404)
PASSED_ON = ("Server-Timing", "X-Request-ID", "Retry-After", "X-Input-Truncated")
STATUS_TIMEOUT_S = 2.0
TIMEOUT_GRACE_S = 2.0  # for the API's own 504 to arrive
CHECK_CLIENT_S = 0.1


@dataclass(frozen=True)
class Answer:
    """Answer of the API: its JSON, and the headers for the browser."""

    body: Any  # JSON
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Visit:
    """A browser's request: the ids to pass on to the API, and whether the browser has disconnected."""

    request_id: str
    traceparent: str | None = None
    client_left: Callable[[], bool] = lambda: False

    @property
    def options(self) -> RequestOptions:
        """The ids as options of a request to the API."""
        options: RequestOptions = {"request_id": self.request_id}
        return options | {"traceparent": self.traceparent} if self.traceparent else options


class ApiClient:
    """Client of one API with a pool of connections; threads may share it.

    A request is sent once more after a 503 with a short Retry-After, or when the connection broke.
    """

    def __init__(self, settings: Settings) -> None:
        key = settings.api_key
        self._native = settings.api_protocol == "native"
        self._client = Client(
            settings.api_url,
            protocol=settings.api_protocol,
            api_key=key.get_secret_value() if key else None,
            timeout_s=settings.request_timeout_s + TIMEOUT_GRACE_S,
            service_timeout_s=settings.request_timeout_s,
            grace_s=TIMEOUT_GRACE_S,
            connect_timeout_s=settings.connect_timeout_s,
            tries=2,
            retry_after_cap_s=settings.retry_after_cap_s,
            connections=settings.threads,
            trust_env=False,  # no proxy is meant for the API
        )
        self._api = self._client.asynchronous

    def close(self) -> None:
        """Closes the pooled connections."""
        self._client.close()

    def predict(self, photo: bytes, visit: Visit, top_k: int, model: str | None = None) -> Answer:
        """Asks for the best classes of an image file. Raises ApiError.

        `model` is the name of one of several models.
        """
        options: PredictOptions = {**visit.options, "top_k": top_k, "base64": self._native}
        if model:
            options["model"] = model
        try:
            return self._answer(lambda: self._api.predict(photo, **options), visit)
        except ApiAnswerError as error:
            if self._native or error.status not in STATUSES_WITHOUT_CODE:
                raise
            raise self._explain_refusal(error) from error

    def ask(self, path: str, content: bytes, visit: Visit) -> Answer:
        """Posts JSON; returns the JSON of the answer, of any shape. Raises ApiError."""
        call = calls.post(path, content)
        return self._answer(lambda: self._api.send(call, answers.result, visit.options), visit)

    def _answer(self, start: Callable[[], Coroutine[Any, Any, Result]], visit: Visit) -> Answer:
        """Runs a call; cancels it when the browser has disconnected. Raises ApiError.

        Waitress tells of a disconnect only when asked, so it is asked before the start, and every
        CHECK_CLIENT_S seconds.
        """
        with translation():
            if visit.client_left():
                raise CancelledError
            future = self._client.start(start())
            while not wait([future], CHECK_CLIENT_S).done:
                if visit.client_left():
                    future.cancel()
            result = future.result()
        return Answer(result.body, passed_on(result.headers))

    def _explain_refusal(self, error: ApiAnswerError) -> ApiError:
        """Tells what Triton's 400 or 404 means: a bad image, or a model that is not loaded."""
        reason = self.not_ready()
        if reason is not None:
            return ApiAnswerError(503, {"code": "unavailable", "detail": reason}, error.headers)
        return ApiAnswerError(error.status, {**error.body(), "code": "invalid_image"}, error.headers)

    def tensors(self, name: str) -> Any:  # JSON
        """Returns a model's inputs and outputs, as the Open Inference Protocol says. Raises ApiError."""
        call = calls.get(calls.of_model("/v2/models", name))
        with translation():
            work = self._api.send(call, answers.result, {"timeout_s": STATUS_TIMEOUT_S})
            return self._client.wait(work).body

    def model(self, name: str | None = None) -> Mapping[str, Any]:  # Any: JSON
        """Returns the answer of `GET /model`, or of `GET /model/NAME`. Raises ApiError."""
        with translation():
            return self._client.model(name, timeout_s=STATUS_TIMEOUT_S).body

    def not_ready(self) -> str | None:
        """Returns None when the API is ready, else its reason. Raises ApiError."""
        with translation():
            readiness = self._client.ready(timeout_s=STATUS_TIMEOUT_S)
        return None if readiness else readiness.detail


@contextmanager
def translation() -> Iterator[None]:
    """Raises the page's errors instead of those of `smallplates.client`."""
    try:
        yield
    except CancelledError as error:
        raise ApiError("cancelled") from error
    except ServingClientError as error:
        if error.body and error.status is not None:
            body = {"code": error.code, "detail": error.detail, **error.body}
            raise ApiAnswerError(error.status, body, passed_on(error.headers)) from error
        if isinstance(error, InvalidAnswerError):
            raise ApiError("api_garbage", error.detail) from error
        if isinstance(error, DeadlineExceededError):
            raise ApiError("api_timeout") from error
        raise ApiError("api_unreachable", "no connection to the API") from error


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the API's headers that the browser gets."""
    return {name: headers[name.lower()] for name in PASSED_ON if name.lower() in headers}
