"""Asks the API through `smallplates.client` and translates its errors into the page's own."""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from flask_app import tensor_model
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
    triton,
)
from smallplates.client.answers import Answer as HttpAnswer

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
        self._triton: dict[str, tensor_model.Config] = {}
        """Triton's models that are loaded, by name; the first is the default."""

    def close(self) -> None:
        """Closes the pooled connections."""
        self._client.close()

    def predict(self, photo: bytes, visit: Visit, top_k: int, model: str | None = None) -> Answer:
        """Asks for the best classes of an image file. Raises ApiError.

        `model` is the name of one of several models. One with a `pipeline` gets a tensor instead.
        """
        if self.pipeline(model):
            config = self._triton[tensor_model.NAME]
            call = tensor_model.call(config, photo)
            answer = self._answer(lambda: self._api.send(call, answers.result, visit.options), visit)
            return Answer(tensor_model.best(config, answer.body, top_k), answer.headers)
        options: PredictOptions = {**visit.options, "top_k": top_k, "base64": self._native}
        if model and self._native:
            options["model"] = model
        try:
            return self._answer(lambda: self._api.predict(photo, **options), visit)
        except ApiAnswerError as error:
            if self._native or error.status not in STATUSES_WITHOUT_CODE:
                raise
            raise self._explain_refusal(error) from error

    def pipeline(self, model: str | None) -> Mapping[str, Any] | None:  # Any: JSON
        """Returns how to prepare a photo for a model that takes tensors; None for the others."""
        asked = model if model == tensor_model.NAME else next(iter(self._triton), None)
        image: Mapping[str, Any] | None = (
            self._triton[asked]["image"] if asked == tensor_model.NAME else None
        )
        return image

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
        reason = self._default_not_ready()
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
            if self._native:
                return self._client.model(name, timeout_s=STATUS_TIMEOUT_S).body
            self._triton = loaded = self._loaded()
        if name == tensor_model.NAME and name in loaded:
            return {**loaded[name], "name": name}
        first = next(iter(loaded.values()))
        names = [first["name"], *list(loaded)[1:]]
        return {**first, "models": [{"name": each, "state": "ready"} for each in names]}

    def _loaded(self) -> dict[str, tensor_model.Config]:
        """Returns Triton's models for photos that are loaded. Raises ServingClientError for none."""

        def read(answer: HttpAnswer) -> tensor_model.Config:
            return {**answer.json(), **triton.model(answer).body}

        found: dict[str, tensor_model.Config] = {}
        for name in (triton.MODEL, tensor_model.NAME):
            work = self._api.send(
                calls.get(triton.model_path(name)), read, {"timeout_s": STATUS_TIMEOUT_S}
            )
            try:
                config = self._client.wait(work)
            except ServingClientError as error:
                if error.status not in triton.NOT_READY or (name == tensor_model.NAME and not found):
                    raise
            else:
                if name == triton.MODEL or {"input", "image", "labels"} <= config.keys():
                    found[name] = config
        return found

    def not_ready(self) -> str | None:
        """Returns None when the API is ready, else its reason. Raises ApiError."""
        reason = self._default_not_ready()
        if reason is not None and not self._native:
            with suppress(ServingClientError):
                return reason if tensor_model.NAME not in self._loaded() else None
        return reason

    def _default_not_ready(self) -> str | None:
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
