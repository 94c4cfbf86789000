"""Errors that the service returns; every class has its HTTP status and code.

RequestError groups the client's errors, RetryableError what may succeed later (503 with Retry-After),
InternalError the server's errors; docs/api.md lists them all. ConfigurationError is not a ServingError:
it is raised at start, and the service does not start.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
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


@contextlib.contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Turns a library's exceptions, of any type, into ConfigurationErrors: `PROBLEM: message`."""
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{problem}: {in_one_line(error)}") from error


class ServingError(Exception):
    """Error that the service returns with `status`, a machine-readable `code` and a message."""

    status = 500
    code = "internal_error"
    headers: Mapping[str, str] = MappingProxyType({})

    def __init_subclass__(
        cls, status: int = 0, code: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Sets what differs from the base class."""
        cls.status, cls.code = status or cls.status, code or cls.code
        cls.headers = MappingProxyType(headers or cls.headers)

    def __init__(self, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if headers is not None:
            self.headers = headers


class RequestError(ServingError, status=400, code="invalid_request"):
    """Error of the client, which must change its request."""


class InvalidBodyError(RequestError, code="invalid_body"):
    """Body does not match its Content-Encoding."""


class InvalidJsonError(RequestError, code="invalid_json"):
    """Body is not JSON."""


class InvalidBase64Error(RequestError, code="invalid_base64"):
    """Text is not base64."""


class InvalidImageError(RequestError, code="invalid_image"):
    """File is not a readable image."""


class InvalidTensorError(RequestError, code="invalid_tensor"):
    """Tensor does not match the model's input in type, shape or values."""


class InvalidTextError(RequestError, code="invalid_text"):
    """Text is empty, or its bytes are not UTF-8."""


class RejectedError(RequestError, code="invalid_input"):
    """Model's own code or graph rejects the input."""


class UnauthorizedError(
    RequestError, status=401, code="unauthorized", headers={"WWW-Authenticate": "Bearer"}
):
    """API key is missing or wrong."""


class NotFoundError(RequestError, status=404, code="not_found"):
    """Path, model or version does not exist."""


class MethodNotAllowedError(RequestError, status=405, code="method_not_allowed"):
    """Path does not support this method."""


class SlowBodyError(RequestError, status=408, code="request_timeout", headers={"Connection": "close"}):
    """Body did not arrive in time."""


class PayloadTooLargeError(RequestError, status=413, code="payload_too_large"):
    """Body, or the answer to a large request, has more bytes than the limit."""


class ImageTooLargeError(RequestError, status=413, code="image_too_large"):
    """Image has more pixels than the limit."""


class TextTooLongError(RequestError, status=413, code="text_too_long"):
    """Text has more bytes or tokens than the limit."""


class UnsupportedMediaTypeError(RequestError, status=415, code="unsupported_media_type"):
    """Content type or encoding is not supported."""


class MisdirectedRequestError(RequestError, status=421, code="misdirected_request"):
    """Host header has a name that is not the service's own."""


class InvalidRequestError(RequestError, status=422):
    """Request does not match the schema."""


class WrongTaskError(RequestError, code="wrong_task"):
    """Model does not do what this path is for."""


class RetryableError(ServingError, status=503, code="unavailable", headers={"Retry-After": "1"}):
    """Temporary refusal: the same request may succeed after `Retry-After` seconds."""


class OverloadedError(RetryableError, code="overloaded"):
    """All slots, connections or buffers are in use."""


class DrainingError(RetryableError, code="draining"):
    """Service is shutting down."""


class UnavailableError(RetryableError):
    """Model is not ready."""


class NotSupportedError(ServingError, status=501, code="not_supported"):
    """This part of a protocol is not supported, or not for this model or with these settings."""


class DeadlineExceededError(ServingError, status=504, code="deadline_exceeded"):
    """Request exceeded its deadline."""


class InternalError(ServingError):
    """Server or the model's own code failed."""


class WorkerCrashedError(InternalError, code="worker_crashed"):
    """Request crashed two workers, the second while running alone."""


class WorkerTimeoutError(InternalError, code="worker_timeout"):
    """Request exceeded the time limit for a batch twice, the second time while running alone."""


def by_status(status: int, detail: str, headers: Mapping[str, str] | None) -> ServingError:
    """Returns the error for a status that the web framework raised (404, 405)."""
    other = RequestError if 400 <= status < 500 else InternalError
    kind = {404: NotFoundError, 405: MethodNotAllowedError}.get(status, other)
    error = kind(detail, headers)
    error.status = status
    return error
