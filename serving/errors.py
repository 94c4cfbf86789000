"""Errors that the service answers with; every class has its HTTP status and code.

RequestError groups the client's faults, RetryableError what may succeed later (503 with Retry-After),
InternalError the server's faults; docs/api.md lists them all. ConfigurationError is not a ServingError:
it is raised at start, and the service does not start.
"""

from collections.abc import Callable, Mapping

from pydantic import ValidationError


class ConfigurationError(Exception):
    """Refuses the start; the message says what is missing or wrong."""


def in_words(error: ValidationError, name: Callable[[str], str] = str) -> str:
    """Returns pydantic's findings on one line: each field and what is wrong with it.

    `name` turns a field's name into what the reader knows. Values are left out: one may be a key.
    """
    by_field: dict[str, list[str]] = {}
    for problem in error.errors(include_url=False, include_input=False):
        first, *rest = (str(part) for part in problem["loc"] or ("the content",))
        rest = [part for part in rest if not set("-[") & set(part)]  # which of several types was tried
        by_field.setdefault(".".join([name(first), *rest]), []).append(problem["msg"])
    return "; ".join(f"{place}: {', or: '.join(messages)}" for place, messages in by_field.items())


class ServingError(Exception):
    """Error that is answered with `status`, a machine-readable `code` and a message."""

    status = 500
    code = "internal_error"

    def __init__(self, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.headers = dict(headers or {})


class RequestError(ServingError):
    """Fault of the client, which has to change its request."""

    status = 400
    code = "invalid_request"


class InvalidBodyError(RequestError):
    """Body is not compressed as its header says."""

    code = "invalid_body"


class InvalidJsonError(RequestError):
    """Body is not JSON."""

    code = "invalid_json"


class InvalidBase64Error(RequestError):
    """Text is not base64."""

    code = "invalid_base64"


class InvalidImageError(RequestError):
    """Bytes are not an image that can be read."""

    code = "invalid_image"


class InvalidTensorError(RequestError):
    """Numbers, or their shape, are not what the model takes."""

    code = "invalid_tensor"


class InvalidTextError(RequestError):
    """Text is empty, or its bytes are not UTF-8."""

    code = "invalid_text"


class RejectedError(RequestError):
    """Input is one that the model's own code refuses."""

    code = "invalid_input"


class UnauthorizedError(RequestError):
    """API key is missing or wrong."""

    status = 401
    code = "unauthorized"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, {"WWW-Authenticate": "Bearer"})


class NotFoundError(RequestError):
    """Path does not exist."""

    status = 404
    code = "not_found"


class MethodNotAllowedError(RequestError):
    """Path exists, but not with this method."""

    status = 405
    code = "method_not_allowed"


class SlowBodyError(RequestError):
    """Body did not arrive in time."""

    status = 408
    code = "request_timeout"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, {"Connection": "close"})


class PayloadTooLargeError(RequestError):
    """Body, or the answer to a large request, has more bytes than the limit."""

    status = 413
    code = "payload_too_large"


class ImageTooLargeError(RequestError):
    """Image has more pixels than the limit."""

    status = 413
    code = "image_too_large"


class TextTooLongError(RequestError):
    """Text has more bytes or tokens than the limit."""

    status = 413
    code = "text_too_long"


class UnsupportedMediaTypeError(RequestError):
    """Body is of an unknown type."""

    status = 415
    code = "unsupported_media_type"


class InvalidRequestError(RequestError):
    """Request is readable, but not of the documented form."""

    status = 422


class RetryableError(ServingError):
    """Refusal for now: the same request may succeed after `retry_after` seconds."""

    status = 503
    code = "unavailable"

    def __init__(self, detail: str, retry_after: int = 1) -> None:
        super().__init__(detail, {"Retry-After": str(retry_after)})


class OverloadedError(RetryableError):
    """Slots are all taken."""

    code = "overloaded"


class DrainingError(RetryableError):
    """Service is shutting down."""

    code = "draining"


class UnavailableError(RetryableError):
    """Model is not ready."""


class NotSupportedError(ServingError):
    """Part of a protocol that this service does not offer, or not with these settings."""

    status = 501
    code = "not_supported"


class DeadlineExceededError(ServingError):
    """Request exceeded its deadline."""

    status = 504
    code = "deadline_exceeded"


class InternalError(ServingError):
    """Fault of the server."""


class WorkerCrashedError(InternalError):
    """Request killed two workers; the second one computed nothing else."""

    code = "worker_crashed"


def by_status(status: int, detail: str, headers: Mapping[str, str] | None) -> ServingError:
    """Returns the error for a status that the web framework raised (404, 405)."""
    known: dict[int, type[RequestError]] = {404: NotFoundError, 405: MethodNotAllowedError}
    other = RequestError if 400 <= status < 500 else InternalError
    kind: type[ServingError] = known.get(status, other)
    error = kind(detail, headers)
    error.status = status
    return error
