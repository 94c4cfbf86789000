"""HTTP answers: their content, and the error that each answer other than 200 is. Does no I/O."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from smallplates.client.errors import (
    InvalidAnswerError,
    ServingClientError,
    UnreachableError,
    class_for_status,
)
from smallplates.client.results import Result, Timing

GATEWAY = (502, 504)  # without the service's JSON, a gateway sent them
V2_CODES = {
    400: "invalid_request",
    401: "unauthorized",
    403: "unauthorized",
    404: "not_found",
    413: "payload_too_large",
    500: "internal_error",
    503: "overloaded",
    504: "deadline_exceeded",
}
"""Codes of the Open Inference Protocol's errors, which say only `{"error": "..."}`."""


@dataclass(frozen=True)
class Answer:
    """HTTP answer with its complete body."""

    status: int
    headers: Mapping[str, str]  # names are in lower case
    content: bytes
    tries: int = 1
    latency_s: float = 0.0

    @property
    def request_id(self) -> str | None:
        """Returns the request id that the service used, None if it sent none."""
        return self.headers.get("x-request-id")

    def json(self) -> Any:  # Any: JSON of any shape
        """Returns the body. Raises ValueError if it is not JSON."""
        try:
            return json.loads(self.content)
        except RecursionError as error:
            raise ValueError("too deep") from error


def result(answer: Answer) -> Result:
    """Reads an answer of any shape. Raises ValueError if it is not JSON."""
    return Result(**result_fields(answer, answer.json()))


def result_fields(answer: Answer, body: Any) -> dict[str, Any]:  # Any: JSON; keyword arguments
    """Returns the arguments of every result."""
    return {
        "timing": Timing.parse(answer.headers.get("server-timing", "")),
        "request_id": answer.request_id or "",
        "latency_s": answer.latency_s,
        "tries": answer.tries,
        "body": body,
        "headers": answer.headers,
    }


def error(answer: Answer) -> ServingClientError:
    """Returns the error for an answer with a status other than 200, of either protocol."""
    status = answer.status
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not 400 <= status < 600:
        return unknown_format(answer)
    if isinstance(body, dict):
        detail = str(body.get("detail") or body.get("error") or f"the service returned {status}")
        codes = V2_CODES if "error" in body else {}
        code = str(body.get("code") or codes.get(status, f"http_{status}"))
        return class_for_status(status)(detail, code=code, body=body, **error_fields(answer))
    if status in GATEWAY:
        return UnreachableError("a gateway responded instead of the service", **error_fields(answer))
    if status in (429, 503):
        return class_for_status(status)(f"a gateway returned {status}", **error_fields(answer))
    return unknown_format(answer)


def unknown_format(answer: Answer) -> InvalidAnswerError:
    """Returns the error for an answer that is not as documented."""
    return InvalidAnswerError(
        f"the service returned {answer.status} in an unknown format", **error_fields(answer)
    )


def error_fields(answer: Answer) -> dict[str, Any]:  # Any: keyword arguments
    """Returns the arguments of ServingClientError that every answer has."""
    return {
        "status": answer.status,
        "request_id": answer.request_id,
        "headers": answer.headers,
        "retry_after_s": retry_after(answer.headers.get("retry-after", "")),
    }


def retry_after(value: str) -> float | None:
    """Parses Retry-After, seconds or a date, to seconds; None when it is missing or neither."""
    if value.isascii() and value.isdigit() and len(value) <= 9:
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
