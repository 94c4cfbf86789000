"""Every error that the service answers with; each class carries its HTTP status and code.

ServingError
├── RequestError              the client's fault
│   ├── InvalidBodyError          400 invalid_body
│   ├── InvalidJsonError          400 invalid_json
│   ├── InvalidBase64Error        400 invalid_base64
│   ├── InvalidImageError         400 invalid_image
│   ├── InvalidTensorError        400 invalid_tensor
│   ├── UnauthorizedError         401 unauthorized
│   ├── NotFoundError             404 not_found
│   ├── MethodNotAllowedError     405 method_not_allowed
│   ├── SlowBodyError             408 request_timeout
│   ├── PayloadTooLargeError      413 payload_too_large
│   ├── ImageTooLargeError        413 image_too_large
│   ├── UnsupportedMediaTypeError 415 unsupported_media_type
│   └── InvalidRequestError       422 invalid_request
├── RetryableError            503 with Retry-After
│   ├── OverloadedError           503 overloaded
│   ├── DrainingError             503 draining
│   └── UnavailableError          503 unavailable
├── NotSupportedError         501 not_supported
├── DeadlineExceededError     504 deadline_exceeded
└── InternalError             500 internal_error
    └── WorkerCrashedError        500 worker_crashed

ConfigurationError is none of these: it is raised at start, and the service does not start.
"""

from collections.abc import Callable, Mapping

from pydantic import ValidationError


class ConfigurationError(Exception):
    """The service cannot start like this; the message says what is missing or wrong."""


def in_words(error: ValidationError, name: Callable[[str], str] = str) -> str:
    """What pydantic found, on one line: each place, its first part by `name`, and what is wrong there.

    The values themselves are left out: one of them may be a key.
    """
    found: dict[str, list[str]] = {}
    for problem in error.errors(include_url=False, include_input=False):
        first, *rest = (str(part) for part in problem["loc"] or ("the content",))
        rest = [part for part in rest if not set("-[") & set(part)]  # which of several types was tried
        found.setdefault(".".join([name(first), *rest]), []).append(problem["msg"])
    return "; ".join(f"{place}: {', or: '.join(messages)}" for place, messages in found.items())


class ServingError(Exception):
    """An error with an answer: `status`, a machine-readable `code` and the message in words."""

    status = 500
    code = "internal_error"

    def __init__(self, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.headers = dict(headers or {})


class RequestError(ServingError):
    """The client has to change its request."""

    status = 400
    code = "invalid_request"


class InvalidBodyError(RequestError):
    """The body is not compressed as its header says."""

    code = "invalid_body"


class InvalidJsonError(RequestError):
    """The body is not JSON."""

    code = "invalid_json"


class InvalidBase64Error(RequestError):
    """The text is not base64."""

    code = "invalid_base64"


class InvalidImageError(RequestError):
    """The bytes are not a picture that can be read."""

    code = "invalid_image"


class InvalidTensorError(RequestError):
    """The numbers are not what the model takes."""

    code = "invalid_tensor"


class UnauthorizedError(RequestError):
    """The API key is missing or wrong."""

    status = 401
    code = "unauthorized"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, {"WWW-Authenticate": "Bearer"})


class NotFoundError(RequestError):
    """No such path."""

    status = 404
    code = "not_found"


class MethodNotAllowedError(RequestError):
    """The path exists, but not with this method."""

    status = 405
    code = "method_not_allowed"


class SlowBodyError(RequestError):
    """The body did not arrive in time."""

    status = 408
    code = "request_timeout"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, {"Connection": "close"})


class PayloadTooLargeError(RequestError):
    """The body has more bytes than the limit."""

    status = 413
    code = "payload_too_large"


class ImageTooLargeError(RequestError):
    """The picture has more pixels than the limit."""

    status = 413
    code = "image_too_large"


class UnsupportedMediaTypeError(RequestError):
    """The body is of a type that is not understood."""

    status = 415
    code = "unsupported_media_type"


class InvalidRequestError(RequestError):
    """Readable, but of another shape than documented."""

    status = 422


class RetryableError(ServingError):
    """Nothing is wrong with the request; the same one may succeed after `retry_after` seconds."""

    status = 503
    code = "unavailable"

    def __init__(self, detail: str, retry_after: int = 1) -> None:
        super().__init__(detail, {"Retry-After": str(retry_after)})


class OverloadedError(RetryableError):
    """All slots are taken."""

    code = "overloaded"


class DrainingError(RetryableError):
    """The service is shutting down."""

    code = "draining"


class UnavailableError(RetryableError):
    """The model is not ready."""


class NotSupportedError(ServingError):
    """Part of a protocol that this service does not offer, or not as it is set up."""

    status = 501
    code = "not_supported"


class DeadlineExceededError(ServingError):
    """The request's time was over before its answer was there."""

    status = 504
    code = "deadline_exceeded"


class InternalError(ServingError):
    """The server's fault."""


class WorkerCrashedError(InternalError):
    """Two workers died while they computed this request, the second one alone."""

    code = "worker_crashed"


def by_status(status: int, detail: str, headers: Mapping[str, str] | None) -> ServingError:
    """The error for a status that the web framework raised on its own (404, 405)."""
    known: dict[int, type[RequestError]] = {404: NotFoundError, 405: MethodNotAllowedError}
    other = RequestError if 400 <= status < 500 else InternalError
    kind: type[ServingError] = known.get(status, other)
    error = kind(detail, headers)
    error.status = status
    return error
