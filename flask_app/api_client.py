"""Talks to the API: pooled, with time-outs, one retry, and every foreign exception translated.

This is the only file that knows `requests`. What can go wrong is `ApiError` in errors.py.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import requests
from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError

from flask_app.cancel import Call, CancellableAdapter, CancelledError
from flask_app.errors import (
    ApiAnswerError,
    ApiCancelledError,
    ApiGarbageError,
    ApiTimeoutError,
    ApiUnreachableError,
)
from flask_app.settings import MEGABYTE, Settings

TOP_K = 5
PASSED_ON = ("Server-Timing", "X-Request-ID", "Retry-After")
STATUS_TIMEOUT_S = 2.0
TIMEOUT_GRACE_S = 2.0  # for the API's own 504 to arrive


@dataclass(frozen=True)
class Answer:
    """What the API answered: its JSON, the ranking in it, and the headers to pass on."""

    body: Mapping[str, Any]  # Any: JSON
    top: tuple[tuple[str, float], ...]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class _Reply:
    """An HTTP response, read to its end."""

    status: int
    body: Any  # JSON of any shape
    headers: Mapping[str, str]


class ApiClient:
    """A pool of connections to one API; safe to share among threads."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.api_url
        self._retry_cap_s = settings.retry_after_cap_s
        self._timeout = (settings.connect_timeout_s, settings.request_timeout_s + TIMEOUT_GRACE_S)
        self._status_timeout = (min(settings.connect_timeout_s, 1.0), STATUS_TIMEOUT_S)
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy or .netrc is meant for the API
        adapter = CancellableAdapter(pool_maxsize=settings.threads)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        self._predict_headers = {"X-Request-Timeout-Ms": str(round(settings.request_timeout_s * 1000))}
        if settings.api_key:
            bearer = f"Bearer {settings.api_key.get_secret_value()}"
            self._predict_headers["Authorization"] = bearer

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
        self._session.close()

    def predict(self, photo: bytes, call: Call, request_id: str | None = None) -> Answer:
        """Asks for the best classes of a picture file. Raises ApiError.

        Tried once more after a 503 whose Retry-After is short, or on a connection that broke
        (an idle one may be closed at any time; the same photo gives the same answer).
        """
        text = base64.b64encode(photo).decode("ascii")
        headers = self._predict_headers | ({"X-Request-ID": request_id} if request_id else {})
        for last in (False, True):
            try:
                reply = self._exchange(
                    "POST",
                    f"/predict?top_k={TOP_K}",
                    self._timeout,
                    call,
                    json={"image": text},
                    headers=headers,
                )
            except _BrokenError:
                if last:
                    raise
                continue
            pause = _retry_after(reply) if reply.status == 503 and not last else None
            if pause is None or pause > self._retry_cap_s:
                break
            if call.pause(pause):
                raise ApiCancelledError
        return _answer(reply)

    def model(self) -> Mapping[str, Any]:  # Any: JSON
        """What `GET /model` says. Raises ApiError."""
        reply = self._exchange("GET", "/model", self._status_timeout, Call())
        if reply.status != 200 or not isinstance(reply.body, dict):
            raise ApiGarbageError(f"GET /model answered {reply.status}")
        return reply.body

    def not_ready(self) -> str | None:
        """None when the API is ready, else its reason. Raises ApiError."""
        reply = self._exchange("GET", "/health/ready", self._status_timeout, Call())
        if reply.status == 200:
            return None
        if reply.status != 503:
            raise ApiGarbageError(f"GET /health/ready answered {reply.status}")
        body = reply.body if isinstance(reply.body, dict) else {}
        return str(body.get("detail") or body.get("status") or "not ready")

    def _exchange(
        self,
        method: str,
        path: str,
        timeout: tuple[float, float],
        call: Call,
        **arguments: Any,  # Any: requests' own keywords
    ) -> _Reply:
        with _translated(call), call.made_by_this_thread():
            response = self._session.request(
                method,
                self._url + path,
                timeout=timeout,
                stream=True,
                allow_redirects=False,
                **arguments,
            )
            with response:
                return _read(response)


class _BrokenError(ApiUnreachableError):
    """The connection was there and broke."""


@contextmanager
def _translated(call: Call) -> Iterator[None]:
    try:
        yield
    except (requests.RequestException, HTTPError, CancelledError) as error:
        if call.cancelled:
            raise ApiCancelledError from error
        if isinstance(error, requests.ReadTimeout | ReadTimeoutError):
            raise ApiTimeoutError from error
        cause = error.args[0] if isinstance(error, requests.ConnectionError) else error
        if isinstance(cause, ProtocolError):
            raise _BrokenError("the connection to the API broke") from error
        raise ApiUnreachableError("no connection to the API") from error


def _read(response: requests.Response) -> _Reply:
    content = response.raw.read(MEGABYTE + 1, decode_content=True)
    if len(content) > MEGABYTE:
        raise ApiGarbageError("the API's answer has more than 1 MB")
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    headers = {name: response.headers[name] for name in PASSED_ON if name in response.headers}
    return _Reply(response.status_code, body, headers)


def _retry_after(reply: _Reply) -> float | None:
    """Seconds; None when the header is missing or a date."""
    value = reply.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else None


def _answer(reply: _Reply) -> Answer:
    body = reply.body
    if reply.status >= 400 and isinstance(body, dict):
        raise ApiAnswerError(reply.status, body, reply.headers)
    if reply.status in (502, 503, 504):
        raise ApiUnreachableError("a proxy answered for the API")
    try:
        if reply.status != 200:
            raise ValueError(f"status {reply.status}")
        top = tuple((str(item["label"]), _probability(item["probability"])) for item in body["top"])
        if not top:
            raise ValueError("no classes")
    except (KeyError, TypeError, ValueError) as error:
        raise ApiGarbageError(f"POST /predict answered {reply.status}, not as documented") from error
    return Answer(body, top, reply.headers)


def _probability(value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{value!r} is not a probability")
    return float(value)
