"""Python tasks as seen by a web process: JSON in, JSON out, and the declared types of both.

Only the worker imports and calls the class itself; see `backend.py`.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import orjson

from smallplates.errors import (
    ConfigurationError,
    InvalidJsonError,
    InvalidRequestError,
    PayloadTooLargeError,
    RejectedError,
    RequestError,
)
from smallplates.models.folder import Model
from smallplates.models.tensors import Signature, TensorSpec
from smallplates.settings import Settings
from smallplates.tasks import base
from smallplates.tasks.base import Candidate, Field, Fields, Outputs, Prepared, Schema, Task
from smallplates.tasks.python.backend import Status

INLINE_BYTES = 64 * 1024
SPACE = 0x20
MAX_ANSWER = 1024 * 1024
"""Maximum bytes of an answer, unless model.json says otherwise."""

FILES = ("image/", "audio/", "video/", "text/", "application/")
"""Prefixes of content types with which a body may be a field of bytes; JSON is never one."""

BATCH_ELEMENTS = 4 * 1024 * 1024
SYNTAX = msgspec.json.Decoder(msgspec.Raw)  # checks the syntax without building anything
LARGE_NUMBER = re.compile(rb"[eE]\+?\d{3}|\d{300}")  # possibly one; text may match, too
ERRORS: dict[int, type[RequestError]] = {
    Status.REFUSED: RejectedError,
    Status.NOT_OF_TYPE: InvalidRequestError,
    Status.NOT_JSON: InvalidJsonError,
}


class PythonRequests(Task):
    """Passes JSON to the worker and the answer back."""

    request_signature = 0
    takes_json = True
    inline_limit = INLINE_BYTES  # copying small requests is cheap

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._most = self._signatures[0].limits["request_bytes"]
        self.limits = {"request_bytes": min(self._most, self._settings.max_body_bytes)}
        self.request_schema = self._schemas.get("request", {})
        self.answer_schema = self._schemas.get("answer", {})
        self.example = self._schemas.get("example")
        self.request = declared_fields(self.request_schema, "request")
        self.answer = declared_fields(self.answer_schema, "answer")
        required = [field for field in self.request if field.required]
        if is_object(self.request_schema) and len(required) == 1 and required[0].is_one_text:
            self.media_types = FILES if required[0].is_bytes else ("text/plain",)
            self.form_fields = (required[0].name,)

    @classmethod
    def plan(cls, model: Model, settings: Settings, *graph: Signature) -> tuple[Signature, ...]:
        """Returns the signature of all Python tasks. Raises ConfigurationError for an unknown limit."""
        limits = {"request_bytes": settings.max_body_bytes, "answer_bytes": MAX_ANSWER}
        if unknown := model.description.limits.keys() - limits.keys():
            raise ConfigurationError(
                f"limits in model.json may have {', '.join(limits)}, not {unknown.pop()}"
            )
        limits |= model.description.limits
        request = TensorSpec("request", "uint8", ("request_bytes",), padding=SPACE, example=SPACE)
        outputs = (TensorSpec("status", "uint8", ()), TensorSpec("answer", "uint8", ("answer_bytes",)))
        return (Signature("python", (request,), outputs, limits, True, BATCH_ELEMENTS),)

    def preprocess(self, fields: Fields) -> Prepared:
        """Passes JSON on unchanged, or encodes the fields that another protocol has delivered.

        Raises InvalidJsonError or PayloadTooLargeError.
        """
        data = fields.get(base.JSON_BODY)
        if data is None:
            whole = fields if is_object(self.request_schema) else fields["request"]
            try:
                data = orjson.dumps(whole, default=base.json_value)
            except orjson.JSONEncodeError as error:  # it reads deeper JSON than it writes
                raise InvalidJsonError(f"the request cannot be written as JSON: {error}") from error
        if not data:
            raise InvalidJsonError("the body is empty")
        if len(data) > self._most:
            raise PayloadTooLargeError(f"the request has more than {self._most} bytes")
        if base.JSON_BODY in fields:
            check_json(data)
        return Prepared([[np.frombuffer(data, np.uint8)]])

    def postprocess(self, prepared: Prepared, outputs: Outputs, top_k: int) -> list[Candidate]:
        """Returns the answer's fields. Raises RejectedError, InvalidRequestError or InvalidJsonError."""
        ((status, answer),) = outputs
        text = answer.tobytes().rstrip()
        if error := ERRORS.get(int(status)):
            raise error(text.decode(errors="replace"))
        value = msgspec.json.decode(text)  # supports integers of any size; orjson returns floats
        return [value if is_object(self.answer_schema) else {"answer": value}]

    def to_json(self, candidates: Sequence[Candidate], with_top: bool) -> Any:
        """Returns the answer as the class returned it."""
        return candidates[0] if is_object(self.answer_schema) else candidates[0]["answer"]


def resolve(schema: Schema) -> Schema:
    """Returns the schema that a top-level reference, as in recursive types, refers to."""
    name = schema.get("$ref", "").rpartition("/")[2]
    definition: Schema = schema.get("$defs", {}).get(name, schema)
    return definition


def is_object(schema: Schema) -> bool:
    """Returns whether a type is an object with known fields."""
    return "properties" in resolve(schema)


def declared_fields(schema: Schema, name: str) -> tuple[Field, ...]:
    """Returns the fields of a type; a type without fields becomes a single field called `name`."""
    return base.fields_of(resolve(schema)) if is_object(schema) else (base.field_of(name, schema, True),)


def check_json(data: bytes) -> None:
    """Checks that a body is JSON and contains no number that is too large for a float.

    This is needed because pydantic, which parses it in the worker, also accepts NaN and Infinity. Raises
    InvalidJsonError.
    """
    try:
        SYNTAX.decode(data)
        if LARGE_NUMBER.search(data):
            orjson.loads(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidJsonError(f"the body is not JSON: {error}"[:200]) from error
