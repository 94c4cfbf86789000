"""Errors that the page answers with; `words.py` has the text that visitors read.

PageError
├── UploadError               what the visitor sent
│   ├── NoPhotoError              400 no_photo
│   ├── TooManyPhotosError        400 too_many_photos
│   ├── FormError                 400 invalid_form
│   ├── TooManyTextsError         400 too_many_texts
│   ├── TooLargeError             413 payload_too_large
│   ├── PixelsError               413 image_too_large
│   ├── ConversionError           415 unsupported_image
│   ├── UnsupportedTypeError      415 unsupported_media_type
│   └── UnknownSampleError        400 unknown_sample
├── PasswordError             401 password_required, with WWW-Authenticate
├── CrossOriginError          403 cross_origin
├── PageBusyError             503 overloaded, with Retry-After
├── FeedbackError             feedback that is refused
│   ├── FeedbackOffError          404 feedback_off
│   ├── BadFeedbackError          400 bad_feedback
│   ├── RateError                 429 too_many_requests, with Retry-After
│   └── FeedbackFullError         507 feedback_full
└── ApiError                  see api_client.py
    ├── ApiAnswerError            the API's own status, code and body
    ├── ApiUnreachableError       502 api_unreachable
    ├── ApiTimeoutError           504 api_timeout
    ├── ApiGarbageError           502 api_garbage
    └── ApiCancelledError         499 cancelled: the browser has disconnected
"""

from collections.abc import Mapping
from typing import Any

from flask_app import words


class PageError(Exception):
    """Error with an answer: HTTP status, code for programs, detail for people, headers."""

    status = 500
    code = "internal_error"

    def __init__(self, detail: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail or words.error(self.code, self.status).title
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:  # Any: JSON
        """Returns the JSON for programs."""
        return {"detail": self.detail, "code": self.code}


class UploadError(PageError):
    """Raised when the visitor has to send something else."""

    status = 400


class NoPhotoError(UploadError):
    """Raised when the form or body is empty."""

    code = "no_photo"


class TooManyPhotosError(UploadError):
    """Raised when one form has more photos than are answered at once."""

    code = "too_many_photos"


class FormError(UploadError):
    """Raised when a field of a form is empty or cannot be read; `detail` names it."""

    code = "invalid_form"


class TooManyTextsError(UploadError):
    """Raised when one form has more lines than are answered at once."""

    code = "too_many_texts"


class TooLargeError(UploadError):
    """Raised when the upload has more bytes than the limit."""

    status = 413
    code = "payload_too_large"


class PixelsError(UploadError):
    """Raised when the image has more pixels than the limit."""

    status = 413
    code = "image_too_large"


class ConversionError(UploadError):
    """Raised when a HEIC or AVIF file cannot be converted."""

    status = 415
    code = "unsupported_image"


class UnsupportedTypeError(UploadError):
    """Raised when the body is neither an image nor a form."""

    status = 415
    code = "unsupported_media_type"


class UnknownSampleError(UploadError):
    """Raised when no sample has the requested key."""

    code = "unknown_sample"


class PasswordError(PageError):
    """Raised when the page has a password and the browser did not send it."""

    status = 401
    code = "password_required"

    def __init__(self) -> None:
        super().__init__(headers={"WWW-Authenticate": 'Basic realm="page", charset="UTF-8"'})


class CrossOriginError(PageError):
    """Raised when another site's page made the browser post here."""

    status = 403
    code = "cross_origin"


class PageBusyError(PageError):
    """Raised when all threads that may wait for the API are waiting."""

    status = 503
    code = "overloaded"

    def __init__(self) -> None:
        super().__init__("too many requests at the same time", {"Retry-After": "1"})


class FeedbackError(PageError):
    """Raised when feedback is refused."""

    status = 400


class FeedbackOffError(FeedbackError):
    """Raised when no feedback folder is configured."""

    status = 404
    code = "feedback_off"


class BadFeedbackError(FeedbackError):
    """Raised when the signature, the label or the photo does not match."""

    code = "bad_feedback"


class RateError(FeedbackError):
    """Raised when one address sends too much feedback; `seconds` is the time to wait."""

    status = 429
    code = "too_many_requests"

    def __init__(self, seconds: int) -> None:
        super().__init__("too much feedback from one address", {"Retry-After": str(seconds)})


class FeedbackFullError(FeedbackError):
    """Raised when the feedback folder has reached its size limit."""

    status = 507
    code = "feedback_full"


class ApiError(PageError):
    """Raised when the request to the API failed."""

    status = 502


class ApiAnswerError(ApiError):
    """Raised when the API answered with an error; its status, body and headers are passed on."""

    def __init__(
        self,
        status: int,
        body: Mapping[str, Any],  # Any: JSON
        headers: Mapping[str, str],
    ) -> None:
        self.status = status
        self.code = str(body.get("code", "")) or f"http_{status}"
        super().__init__(str(body.get("detail", "")), headers)
        self._body = body

    def with_code(self, code: str) -> "ApiAnswerError":
        """Returns the same error with another code."""
        return ApiAnswerError(self.status, {**self._body, "code": code}, self.headers)

    def body(self) -> dict[str, Any]:  # Any: JSON
        """Returns the API's own JSON."""
        return {**super().body(), **self._body}


class ApiUnreachableError(ApiError):
    """Raised when no connection to the API could be made, or it broke."""

    code = "api_unreachable"


class ApiTimeoutError(ApiError):
    """Raised when the API did not answer in time."""

    status = 504
    code = "api_timeout"


class ApiGarbageError(ApiError):
    """Raised when the API's answer is not as documented."""

    code = "api_garbage"


class ApiCancelledError(ApiError):
    """Raised when the browser disconnected and the request to the API was cancelled."""

    status = 499
    code = "cancelled"
