"""Tasks: what a request means, from its fields to tensors and from tensors to its answer.

A task declares the fields of its requests and answers, from which the protocols derive all they need.
`Classification` is the base of tasks with classes.
"""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pydantic
from pydantic import TypeAdapter

from smallplates.errors import RequestError
from smallplates.models.folder import Model
from smallplates.models.huggingface import Config
from smallplates.models.scores import ACTIVATIONS, best
from smallplates.models.tensors import Array, Item, Signature
from smallplates.settings import Settings

T = TypeVar("T")
DATATYPES = {"string": "BYTES", "number": "FP64", "integer": "INT64", "boolean": "BOOL"}
"""Type in JSON schema -> type in the Open Inference Protocol; `format: float` means FP32."""

BASE64 = {"base64", "base64url"}
"""Values of `contentEncoding` or `format` in a JSON schema for bytes; pydantic reads either alphabet."""

JSON_BODY = ""
"""Name of the field that holds unparsed JSON, as bytes."""

Schema = Mapping[str, Any]
Fields = Mapping[str, Any]
"""A request's values by field: str, bytes, numbers, or objects and lists of JSON."""

Outputs = Sequence[Sequence[Array]]
"""The network's outputs for each item of an input."""

Candidate = Mapping[str, Any]
"""One possible answer: its values by field; with classes also `index`, the index of its class."""


@dataclass(frozen=True)
class Field:
    """A field of a request or an answer."""

    name: str
    datatype: str
    """Type in the Open Inference Protocol; BYTES for text, bytes and JSON."""

    is_bytes: bool = False
    """Whether it is bytes, or a list of bytes; JSON carries bytes as base64."""

    is_image: bool = False
    """Whether its bytes are an image file, which cannot be mistaken for base64; either is accepted."""

    is_list: bool = False
    is_json: bool = False
    """Whether it is BYTES with JSON text: an object, or a list of other values than scalars."""

    required: bool = True
    takes_list: bool = False
    """Whether it is a text that JSON may also have as a list of texts."""

    @property
    def is_one_text(self) -> bool:
        """Whether its value is a single text, or bytes."""
        return self.datatype == "BYTES" and not (self.is_json or self.is_list or self.takes_list)


def fields_of(schema: Schema) -> tuple[Field, ...]:
    """Returns the fields that a JSON schema of an object declares."""
    required = schema.get("required", ())
    return tuple(
        field_of(name, value, name in required) for name, value in schema.get("properties", {}).items()
    )


def field_of(name: str, schema: Schema, required: bool) -> Field:
    """Returns the field for a JSON schema; an optional field may also be null."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1 and not required:
        return field_of(name, choices[0], required)
    if sorted(str(choice.get("type")) for choice in choices) == ["array", "string"]:
        return Field(name, "BYTES", required=required, takes_list=True)
    is_list = schema.get("type") == "array"
    value = schema.get("items", {}) if is_list else schema
    datatype = "FP32" if value.get("format") == "float" else DATATYPES.get(str(value.get("type")))
    if datatype is None:
        return Field(name, "BYTES", is_json=True, required=required)
    is_bytes = not BASE64.isdisjoint((value.get("contentEncoding"), value.get("format")))
    return Field(name, datatype, is_bytes=is_bytes, is_list=is_list, required=required)


def json_value(value: Any) -> Any:
    """Returns a field's value for JSON: bytes become base64."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@dataclass(slots=True)
class Prepared:
    """An input, ready for the engine."""

    items: Sequence[Item]
    """Usually one item; a long text becomes several."""

    context: Any = None
    """Data from the request that `Task.postprocess` needs."""

    truncated: bool = False
    """Whether part of the request was ignored."""

    tokens: int = 0
    """Number of tokens in all items, of models that take texts."""

    runs_inline: bool = True
    """Whether `Task.postprocess` may run on the event loop if there is only one item."""


class Task:
    """A model's task; `preprocess` is called on several threads at once."""

    request_signature: int | None = None
    """Index of the signature for requests; None if the model takes tensors only."""

    tensor_signature: int | None = None
    """Index of the signature that clients may call with tensors; None if there is none."""

    request: tuple[Field, ...] = ()
    answer: tuple[Field, ...] = ()
    """Fields of a candidate."""

    takes_json: bool = False
    """Whether a JSON body is passed on unparsed, as the field JSON_BODY."""

    list_fields: tuple[str, ...] = ()
    """Names of fields that may be lists in JSON, or repeated in a form, to send several requests."""

    media_types: tuple[str, ...] = ()
    """Prefixes of the content types with which a body is the value of `body_field`."""

    form_fields: tuple[str, ...] = ()
    """Names that the form field with the value of `body_field` may have."""

    labels: Sequence[str] = ()
    """Class names by index; empty if the model does not classify."""

    most_candidates: int = 1
    """Maximum number of candidates in an answer, which is the largest `top_k`."""

    usual_candidates: int = 1
    """Maximum number of candidates without `top_k`."""

    prepares_together: bool = False
    """Whether `preprocess_all` is faster than a thread for each input."""

    inline_limit: int = 0
    """Size in bytes of the largest input for which `is_cheap` is called."""

    large_bytes: float = math.inf
    """Size in bytes of an input, beyond which a thread for large inputs prepares it."""

    example: Fields | None = None
    """Example request for the documentation."""

    limits: Mapping[str, int] = MappingProxyType({})
    """Unit, such as `tokens`, -> how many of it a request may have."""

    example_type: str = "application/octet-stream"
    """Content type for a body that is the value of `body_field`."""

    request_schema: Schema = {"type": "object"}  # noqa: RUF012 never modified
    """JSON schema of a request in JSON."""

    answer_schema: Schema = {"type": "object"}  # noqa: RUF012
    """JSON schema of an answer in JSON."""

    def __init_subclass__(
        cls, request: Any = None, answer: Any = None, candidate: Any = None, **further: Any
    ) -> None:
        """Derives schemas and fields from the types of a request, an answer, and its candidates."""
        super().__init_subclass__(**further)
        if request:
            cls.request_schema = TypeAdapter(request).json_schema()
            cls.request = fields_of(cls.request_schema)
        if answer:
            cls.answer_schema = TypeAdapter(answer).json_schema()
            cls.answer = fields_of(TypeAdapter(candidate or answer).json_schema())

    def __init__(
        self,
        model: Model,
        settings: Settings,
        signatures: Sequence[Signature] = (),
        schemas: Schema = MappingProxyType({}),
    ) -> None:
        """`signatures` is what `plan` has returned.

        `schemas` are those that a Python task declares, see `engine.backend.DeclaredBackend`.
        """
        self._model, self._settings = model, settings
        self._signatures, self._schemas = signatures, schemas

    @classmethod
    def from_export(cls, folder: Path, config: Config) -> dict[str, Any] | None:
        """Returns the fields of model.json that an export's other files state; None for another task's.

        `config` is its config.json, for errors about which it raises ValueError; raises
        ConfigurationError for other files.
        """
        raise NotImplementedError

    @classmethod
    def plan(cls, model: Model, settings: Settings, *graph: Signature) -> tuple[Signature, ...]:
        """Returns the network's signatures; `graph` is what the backend read from the model's file.

        Raises ConfigurationError if the task cannot use the graph.
        """
        return graph

    @property
    def body_field(self) -> Field | None:
        """The only required field, if clients may send it as a body that is not JSON; else None."""
        required = [field for field in self.request if field.required]
        return required[0] if len(required) == 1 and self.media_types else None

    @property
    def json_example(self) -> Any:
        """The example in JSON; None if there is none."""
        if not isinstance(self.example, Mapping):
            return self.example
        return {name: json_value(value) for name, value in self.example.items()}

    def likely_items(self, size: int) -> int:
        """Estimates how many items, and so how many slots, an input of `size` bytes needs."""
        return 1

    def is_cheap(self, fields: Fields) -> bool:
        """Returns whether `preprocess` may run on the event loop; called for small inputs only."""
        return True

    def check_all(self, requests: Sequence[Fields]) -> None:
        """Raises RequestError if the inputs of a request are too large together; called first."""

    def preprocess(self, fields: Fields) -> Prepared:
        """Turns a request's fields into items for the engine.

        Raises RequestError, or NotSupportedError if the model takes tensors only.
        """
        raise NotImplementedError

    def preprocess_small(self, fields: Fields) -> Prepared:
        """Like `preprocess`; ImageTooLargeError means that a thread for large inputs must prepare it."""
        return self.preprocess(fields)

    def preprocess_all(self, requests: Sequence[Fields]) -> list[Prepared | RequestError]:
        """Turns the fields of many inputs into items; returns the error of an input that has one."""
        return [result_or_error(self.preprocess, fields) for fields in requests]

    def postprocess(self, prepared: Prepared, outputs: Outputs, top_k: int) -> list[Candidate]:
        """Returns up to `top_k` candidates, best first."""
        raise NotImplementedError

    def to_json(self, candidates: Sequence[Candidate], with_top: bool) -> Any:
        """Returns the JSON of an answer: the best candidate; tasks that rank add all if `with_top`."""
        return candidates[0]


def result_or_error(function: Callable[..., T], *arguments: Any) -> T | RequestError:
    """Returns what a function returns, or the RequestError that it raises."""
    try:
        return function(*arguments)
    except RequestError as error:
        return error


class LabelProbability(pydantic.BaseModel):
    """One class."""

    label: str
    probability: float = pydantic.Field(ge=0, le=1, json_schema_extra={"format": "float"})


class PredictResponse(pydantic.BaseModel):
    """The most probable class; `top` only when `top_k` was asked for."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={"example": {"prediction": "Bread", "probability": 0.97}}
    )

    prediction: str
    probability: float = pydantic.Field(ge=0, le=1)
    top: list[LabelProbability] | None = pydantic.Field(default=None, description="Most probable first.")


class Classification(Task, answer=PredictResponse, candidate=LabelProbability):
    """Base of tasks that turn a single item's logits into the best classes, by softmax or sigmoid."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.labels = self._model.labels
        self.most_candidates = len(self.labels)
        self._activation = ACTIVATIONS[self._model.description.activation]

    def postprocess(self, prepared: Prepared, outputs: Outputs, top_k: int) -> list[Candidate]:
        """Returns the most probable classes."""
        ((logits,),) = outputs
        return [*best(self.labels, logits, top_k, self._activation)]

    def to_json(self, candidates: Sequence[Candidate], with_top: bool) -> dict[str, Any]:
        """Returns the best class; `with_top` adds all candidates."""
        first = candidates[0]
        content = {"prediction": first["label"], "probability": first["probability"]}
        if with_top:
            content["top"] = [
                {"label": candidate["label"], "probability": candidate["probability"]}
                for candidate in candidates
            ]
        return content
