"""Errors of the client.

ServingClientError
├── UnreadablePhotoError     unreadable_photo   the file cannot be read; nothing was sent
├── UnreachableError         unreachable        no connection, or it broke before the answer was complete
├── DeadlineExceededError    deadline_exceeded  no time is left: 504, or (status None) nothing came
├── InvalidAnswerError       invalid_answer     the answer is not as documented
├── RequestRefusedError      4xx, with the service's code: the request has to change
│   └── UnauthorizedError        401 unauthorized
├── ServiceUnavailableError  503 overloaded, draining, unavailable; also a gateway's 429
└── ServerError              500 internal_error, worker_crashed, worker_timeout; any other 5xx
"""

from collections.abc import Mapping
from typing import Any


class ServingClientError(Exception):
    """Base of all errors: `code` is for programs, `detail` for people."""

    code = "error"

    def __init_subclass__(cls, code: str = "") -> None:
        """Sets the code of a kind of errors."""
        cls.code = code or cls.code

    def __init__(
        self,
        detail: str,
        *,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        body: Mapping[str, Any] | None = None,  # Any: JSON
        headers: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        """HTTP status; None when no answer came."""

        self.code = code or type(self).code
        self.request_id = request_id
        """Request id, as it is in the service's log."""

        self.body = dict(body or {})
        """JSON of the answer; empty when there was none."""

        self.headers = dict(headers or {})
        """Headers of the answer, with names in lower case."""

        self.retry_after_s = retry_after_s
        """Seconds that the service asks to wait; None when it does not say."""

    def __str__(self) -> str:
        """Returns `detail (503 overloaded, request 5f0c...)`."""
        status = f"{self.status} " if self.status else ""
        request = f", request {self.request_id}" if self.request_id else ""
        return f"{self.detail} ({status}{self.code}{request})"

    @property
    def retryable(self) -> bool:
        """True when the same request may succeed later and may safely be sent again."""
        return False


class UnreadablePhotoError(ServingClientError, code="unreadable_photo"):
    """Raised when the photo cannot be read from its path or file; nothing was sent."""


class UnreachableError(ServingClientError, code="unreachable"):
    """Raised when there was no connection, or it broke; with a status, a gateway reported it."""

    @property
    def retryable(self) -> bool:
        """True unless a gateway answered: a prediction changes nothing, so asking twice is safe."""
        return self.status is None


class DeadlineExceededError(ServingClientError, code="deadline_exceeded"):
    """Raised when the service answered 504 or, with status None, did not answer in time."""


class InvalidAnswerError(ServingClientError, code="invalid_answer"):
    """Raised when something answered, but not as the service's documentation says."""


class RequestRefusedError(ServingClientError, code="invalid_request"):
    """Raised for 4xx: the request has to change."""


class UnauthorizedError(RequestRefusedError, code="unauthorized"):
    """Raised when the API key is missing or wrong."""


class ServiceUnavailableError(ServingClientError, code="unavailable"):
    """Raised when the request is fine, but the service cannot take it now."""

    @property
    def retryable(self) -> bool:
        """True when the answer has Retry-After; without it, a later try is no likelier to succeed."""
        return self.retry_after_s is not None


class ServerError(ServingClientError, code="internal_error"):
    """Raised when the service failed. Never retried: the same request would most likely fail again."""


def class_for_status(status: int) -> type[ServingClientError]:
    """Returns the error class for a status from 400 to 599."""
    classes: dict[int, type[ServingClientError]] = {
        401: UnauthorizedError,
        429: ServiceUnavailableError,
        503: ServiceUnavailableError,
        504: DeadlineExceededError,
    }
    return classes.get(status, RequestRefusedError if status < 500 else ServerError)
