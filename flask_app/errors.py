"""Every error that the page answers with, and the words in which it does.

PageError
├── UploadError               the visitor's photo or form
│   ├── NoPhotoError              400 no_photo
│   ├── TooManyPhotosError        400 too_many_photos
│   ├── TooLargeError             413 payload_too_large
│   ├── PixelsError               413 image_too_large
│   ├── ConversionError           415 unsupported_image
│   ├── UnsupportedTypeError      415 unsupported_media_type
│   └── UnknownSampleError        400 unknown_sample
├── CrossOriginError          403 cross_origin
├── PageBusyError             503 overloaded, with Retry-After
├── FeedbackError             feedback that is not taken
│   ├── FeedbackOffError          404 feedback_off
│   ├── BadFeedbackError          400 bad_feedback
│   ├── RateError                 429 too_many_requests, with Retry-After
│   └── FeedbackFullError         507 feedback_full
└── ApiError                  see api_client.py
    ├── ApiAnswerError            the API's own status, code and body
    ├── ApiUnreachableError       502 api_unreachable
    ├── ApiTimeoutError           504 api_timeout
    ├── ApiGarbageError           502 api_garbage
    └── ApiCancelledError         499 cancelled: nobody is there to read it
"""

from collections.abc import Mapping
from typing import Any

from flask_app import words


class PageError(Exception):
    """An error with an answer: `status`, a machine-readable `code` and the detail in words."""

    status = 500
    code = "internal_error"

    def __init__(self, detail: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail or words.error(self.code, self.status).title
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:  # Any: JSON
        """What a program reads."""
        return {"detail": self.detail, "code": self.code}


class UploadError(PageError):
    """The visitor has to send something else."""

    status = 400


class NoPhotoError(UploadError):
    """The form or body is empty."""

    code = "no_photo"


class TooManyPhotosError(UploadError):
    """One form carries more photos than are answered at once."""

    code = "too_many_photos"


class TooLargeError(UploadError):
    """More bytes than the limit."""

    status = 413
    code = "payload_too_large"


class PixelsError(UploadError):
    """More pixels than the limit."""

    status = 413
    code = "image_too_large"


class ConversionError(UploadError):
    """A HEIC or AVIF file that cannot be converted here."""

    status = 415
    code = "unsupported_image"


class UnsupportedTypeError(UploadError):
    """The body is neither a picture nor a form."""

    status = 415
    code = "unsupported_media_type"


class UnknownSampleError(UploadError):
    """No sample picture has this name."""

    code = "unknown_sample"


class CrossOriginError(PageError):
    """Another site's page made the browser post here."""

    status = 403
    code = "cross_origin"


class PageBusyError(PageError):
    """Every thread that may wait for the API does."""

    status = 503
    code = "overloaded"

    def __init__(self) -> None:
        super().__init__("too many photos at the same time", {"Retry-After": "1"})


class FeedbackError(PageError):
    """Feedback that is not taken."""

    status = 400


class FeedbackOffError(FeedbackError):
    """No folder is configured."""

    status = 404
    code = "feedback_off"


class BadFeedbackError(FeedbackError):
    """The signature, the label or the photo does not fit."""

    code = "bad_feedback"


class RateError(FeedbackError):
    """Too much from one address."""

    status = 429
    code = "too_many_requests"

    def __init__(self, seconds: int) -> None:
        super().__init__("too much feedback from one address", {"Retry-After": str(seconds)})


class FeedbackFullError(FeedbackError):
    """The folder has reached its size limit."""

    status = 507
    code = "feedback_full"


class ApiError(PageError):
    """Something went wrong between this server and the API."""

    status = 502


class ApiAnswerError(ApiError):
    """The API answered with an error; status, body and headers are passed on."""

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
        """The same answer under another code."""
        return ApiAnswerError(self.status, {**self._body, "code": code}, self.headers)

    def body(self) -> dict[str, Any]:  # Any: JSON
        """The API's own words."""
        return {**super().body(), **self._body}


class ApiUnreachableError(ApiError):
    """No connection, or it broke."""

    code = "api_unreachable"


class ApiTimeoutError(ApiError):
    """No answer in time."""

    status = 504
    code = "api_timeout"


class ApiGarbageError(ApiError):
    """An answer that is none of the documented ones."""

    code = "api_garbage"


class ApiCancelledError(ApiError):
    """The browser has gone, and the request to the API was ended."""

    status = 499
    code = "cancelled"
