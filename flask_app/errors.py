"""Errors that the page answers with; `words.py` has the text that visitors read.

PageError             any code of STATUSES
├── UploadError       what the visitor sent
└── ApiError          what the API did: api_client.py
    └── ApiAnswerError    the API's own status, code and body
"""

from collections.abc import Mapping
from typing import Any

from flask_app import words

STATUSES = {
    "internal_error": 500,
    # what the visitor sent
    "no_photo": 400,
    "too_many_photos": 400,
    "unknown_sample": 400,
    "invalid_form": 400,
    "too_many_texts": 400,
    "payload_too_large": 413,
    "image_too_large": 413,
    "unsupported_image": 415,
    "unsupported_media_type": 415,
    # who asks, and how often
    "password_required": 401,
    "cross_origin": 403,
    "misdirected_request": 421,
    "overloaded": 503,
    # feedback
    "feedback_off": 404,
    "bad_feedback": 400,
    "too_many_requests": 429,
    "feedback_full": 507,
    # the API
    "api_unreachable": 502,
    "api_timeout": 504,
    "api_garbage": 502,
    "cancelled": 499,  # the browser has disconnected
}
"""HTTP status of each code that the page has itself."""


class PageError(Exception):
    """Error with an answer: HTTP status, code for programs, detail for people, headers."""

    def __init__(
        self,
        code: str = "internal_error",
        detail: str = "",
        headers: Mapping[str, str] | None = None,
        status: int = 0,
    ) -> None:
        """`status` is for a code that is not in STATUSES."""
        super().__init__(detail)
        self.code = code
        self.status = status or STATUSES[code]
        self.detail = detail or words.error(code, self.status).title
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:  # Any: JSON
        """Returns the JSON for programs."""
        return {"detail": self.detail, "code": self.code}


class UploadError(PageError):
    """Raised when the visitor has to send something else."""


class ApiError(PageError):
    """Raised when the request to the API failed."""


class ApiAnswerError(ApiError):
    """Raised when the API answered with an error; its status, body and headers are passed on."""

    def __init__(
        self,
        status: int,
        body: Mapping[str, Any],  # Any: JSON
        headers: Mapping[str, str],
    ) -> None:
        code = str(body.get("code", "")) or f"http_{status}"
        super().__init__(code, str(body.get("detail", "")), headers, status)
        self._body = body

    def body(self) -> dict[str, Any]:
        """Returns the API's own JSON."""
        return {**super().body(), **self._body}
