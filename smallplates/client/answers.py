"""Reads HTTP answers: results from answers 200, errors from all others. Does no I/O."""

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
from smallplates.client.results import (
    Model,
    Prediction,
    QuestionAnswer,
    Readiness,
    Result,
    Score,
    Span,
    Timing,
)

GATEWAY = (502, 504)  # without the service's JSON, a gateway sent them


@dataclass(frozen=True)
class Answer:
    """HTTP answer with its complete body."""

    status: int
    headers: Mapping[str, str]
    """Names are in lower case."""

    content: bytes

    @property
    def request_id(self) -> str | None:
        """Returns the request id that the service used, None if it sent none."""
        return self.headers.get("x-request-id")

    def json(self) -> Any:  # Any: JSON of any shape
        """Returns the parsed body; None when it is not JSON."""
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):
            return None


def prediction(answer: Answer, top_k: int | None) -> Prediction:
    """Reads the answer of `POST /predict`. Raises ServingClientError."""
    if answer.status != 200:
        raise error(answer)
    body = answer.json()
    try:
        best = score(body["prediction"], body["probability"])
        top: tuple[Score, ...] = (best,)
        if top_k is not None:
            top = tuple(score(item["label"], item["probability"]) for item in body["top"])
            if not top or top[0] != best:
                raise ValueError("top does not begin with the prediction")
    except (KeyError, TypeError, ValueError) as problem:
        raise undocumented(answer) from problem
    return build_prediction(answer, top, body)


def build_prediction(answer: Answer, top: tuple[Score, ...], body: Mapping[str, Any]) -> Prediction:
    """Builds the prediction for a good answer; `top` is not empty."""
    return Prediction(
        label=top[0].label, probability=top[0].probability, top=top, **result_fields(answer, body)
    )


def question_answer(answer: Answer, top_k: int | None) -> QuestionAnswer:
    """Reads the answer of `POST /predict` to a question. Raises ServingClientError."""
    if answer.status != 200:
        raise error(answer)
    body = answer.json()
    try:
        best = span(body)
        top = (best,) if top_k is None else tuple(span(item) for item in body["top"])
    except (KeyError, TypeError, ValueError) as problem:
        raise undocumented(answer) from problem
    return QuestionAnswer(**vars(best), top=top, **result_fields(answer, body))


def result(answer: Answer, _: int | None) -> Result:
    """Reads the answer of `POST /predict`, whatever the model's task. Raises ServingClientError."""
    if answer.status != 200:
        raise error(answer)
    body = answer.json()
    if not isinstance(body, dict | list):
        raise undocumented(answer)
    return Result(**result_fields(answer, body))


def result_fields(answer: Answer, body: Any) -> dict[str, Any]:  # Any: JSON
    """Returns the arguments of every result."""
    return {
        "timing": Timing.parse(answer.headers.get("server-timing", "")),
        "request_id": answer.request_id or "",
        "body": body,
        "headers": answer.headers,
    }


def span(item: Mapping[str, Any]) -> Span:
    """Checks the types of an answer to a question. Raises ValueError, TypeError or KeyError."""
    text, number, start, end = (item[name] for name in ("answer", "score", "start", "end"))
    if not (isinstance(text, str) and type(start) is type(end) is int and 0 <= start <= end):
        raise ValueError(f"{text!r}, from {start!r} to {end!r}, is not a part of a text")
    if isinstance(number, bool) or not isinstance(number, int | float) or number < 0:
        raise ValueError(f"{number!r} is not a score")
    return Span(text, float(number), start, end)


def score(label: object, probability: object) -> Score:
    """Checks the types and that the probability is from 0 to 1. Raises ValueError."""
    if not isinstance(label, str):
        raise ValueError(f"{label!r} is not a label")
    if isinstance(probability, bool) or not isinstance(probability, int | float):
        raise ValueError(f"{probability!r} is not a probability")
    if not 0 <= probability <= 1:
        raise ValueError(f"{probability!r} is not a probability")
    return Score(label, float(probability))


def model(answer: Answer) -> Model:
    """Reads the answer of `GET /model`. Raises ServingClientError."""
    if answer.status != 200:
        raise error(answer)
    body = answer.json()
    if not isinstance(body, dict):
        raise undocumented(answer)
    labels = body.get("labels")
    return Model(
        name=str(body.get("name", "")),
        version=str(body.get("version", "")),
        labels=tuple(map(str, labels)) if isinstance(labels, list) else (),
        body=body,
    )


def readiness(answer: Answer) -> Readiness:
    """Reads the answer of `GET /health/ready`. Raises ServingClientError."""
    if answer.status == 200:
        return Readiness(True, "")
    if answer.status != 503:
        raise error(answer)
    body = answer.json()
    said = body if isinstance(body, dict) else {}
    return Readiness(False, str(said.get("detail") or said.get("status") or "not ready"))


def error(answer: Answer) -> ServingClientError:
    """Returns the error for an answer with a status other than 200."""
    body = answer.json()
    if not 400 <= answer.status < 600:
        return undocumented(answer)
    if isinstance(body, dict):
        detail = str(body.get("detail") or f"the service returned {answer.status}")
        return refusal(answer, detail, str(body.get("code") or f"http_{answer.status}"), body)
    if answer.status in GATEWAY:
        return UnreachableError("a gateway responded instead of the service", **common_fields(answer))
    if answer.status in (429, 503):
        return class_for_status(answer.status)(
            f"a gateway returned {answer.status}", **common_fields(answer)
        )
    return undocumented(answer)


def refusal(answer: Answer, detail: str, code: str, body: Mapping[str, Any]) -> ServingClientError:
    """Returns the error for a status from 400 to 599 that the service itself sent."""
    return class_for_status(answer.status)(detail, code=code, body=body, **common_fields(answer))


def common_fields(answer: Answer) -> dict[str, Any]:  # Any: keyword arguments
    """Returns the arguments of ServingClientError that every answer has."""
    return {
        "status": answer.status,
        "request_id": answer.request_id,
        "headers": answer.headers,
        "retry_after_s": retry_after(answer.headers.get("retry-after", "")),
    }


def undocumented(answer: Answer) -> InvalidAnswerError:
    """Returns the error for an answer that is not as documented."""
    return InvalidAnswerError(
        f"the service returned {answer.status} in an unknown format",
        status=answer.status,
        request_id=answer.request_id,
        headers=answer.headers,
    )


def retry_after(value: str) -> float | None:
    """Parses Retry-After, seconds or a date, to seconds; None when it is missing or neither."""
    if value.isascii() and value.isdigit() and len(value) <= 9:
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
