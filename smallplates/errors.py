"""Errors that the service returns; every class has its HTTP status and code.

RequestError groups the client's errors, RetryableError what may succeed later (503 with Retry-After),
InternalError the server's errors; docs/api.md lists them all. ConfigurationError is not a ServingError:
it is raised at start, and the service does not start.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pydantic import ValidationError

MAX_SUMMARY = 1000


class ConfigurationError(Exception):
    """Raised at start: the service does not start. The message says what is missing or wrong."""


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


def raise_all(errors: Sequence[ConfigurationError]) -> None:
    """Raises the only error, or one with the messages of all; does nothing if there is none."""
    if errors:
        raise ConfigurationError("; ".join(map(str, errors))) from errors[0]


def in_one_line(error: BaseException) -> str:
    """Returns an exception's message in one line, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def summary(error: BaseException) -> str:
    """Returns an error's type and the first line of its text, cut at MAX_SUMMARY characters.

    What is not UTF-8, such as a file's name, becomes a question mark: JSON has no form for it.
    """
    text = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])[:MAX_SUMMARY]
    return text.encode(errors="replace").decode()


class ServingError(Exception):
    """Error that the service returns with `status`, a machine-readable `code` and a message."""

    status = 500
    code = "internal_error"
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if headers is not None:
            self.headers = headers


class RequestError(ServingError):
    """Error of the client, which must change its request."""

    status = 400
    code = "invalid_request"


class InvalidBodyError(RequestError):
    """Body does not match its Content-Encoding."""

    code = "invalid_body"


class InvalidJsonError(RequestError):
    """Body is not JSON."""

    code = "invalid_json"


class InvalidBase64Error(RequestError):
    """Text is not base64."""

    code = "invalid_base64"


class InvalidImageError(RequestError):
    """File is not a readable image."""

    code = "invalid_image"


class InvalidTensorError(RequestError):
    """Tensor does not match the model's input in type, shape or values."""

    code = "invalid_tensor"


class InvalidTextError(RequestError):
    """Text is empty, or its bytes are not UTF-8."""

    code = "invalid_text"


class RejectedError(RequestError):
    """Model's own code or graph rejects the input."""

    code = "invalid_input"


class UnauthorizedError(RequestError):
    """API key is missing or wrong."""

    status = 401
    code = "unauthorized"
    headers = MappingProxyType({"WWW-Authenticate": "Bearer"})


class NotFoundError(RequestError):
    """Path, model or version does not exist."""

    status = 404
    code = "not_found"


class MethodNotAllowedError(RequestError):
    """Path does not support this method."""

    status = 405
    code = "method_not_allowed"


class SlowBodyError(RequestError):
    """Body did not arrive in time."""

    status = 408
    code = "request_timeout"
    headers = MappingProxyType({"Connection": "close"})


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
    """Content type or encoding is not supported."""

    status = 415
    code = "unsupported_media_type"


class InvalidRequestError(RequestError):
    """Request does not match the schema."""

    status = 422


class WrongTaskError(RequestError):
    """Model does not do what this path is for."""

    code = "wrong_task"


class RetryableError(ServingError):
    """Temporary refusal: the same request may succeed after `Retry-After` seconds."""

    status = 503
    code = "unavailable"
    headers = MappingProxyType({"Retry-After": "1"})


class OverloadedError(RetryableError):
    """All slots, connections or buffers are in use."""

    code = "overloaded"


class DrainingError(RetryableError):
    """Service is shutting down."""

    code = "draining"


class UnavailableError(RetryableError):
    """Model is not ready."""


class NotSupportedError(ServingError):
    """This part of a protocol is not supported, or not for this model or with these settings."""

    status = 501
    code = "not_supported"


class DeadlineExceededError(ServingError):
    """Request exceeded its deadline."""

    status = 504
    code = "deadline_exceeded"


class InternalError(ServingError):
    """Server or the model's own code failed."""


class WorkerCrashedError(InternalError):
    """Request crashed two workers, the second while running alone."""

    code = "worker_crashed"


class WorkerTimeoutError(InternalError):
    """Request exceeded the time limit for a batch twice, the second time while running alone."""

    code = "worker_timeout"


def by_status(status: int, detail: str, headers: Mapping[str, str] | None) -> ServingError:
    """Returns the error for a status that the web framework raised (404, 405)."""
    other = RequestError if 400 <= status < 500 else InternalError
    kind = {404: NotFoundError, 405: MethodNotAllowedError}.get(status, other)
    error = kind(detail, headers)
    error.status = status
    return error
