"""Tasks: what a request means, from its fields to tensors and from tensors to its answer.

A task declares the fields of its requests and answers; the protocols derive all they need from them.
`Classification` is what tasks with classes share.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import pydantic

from serving.model import Model
from serving.scores import ACTIVATIONS, best
from serving.settings import Settings
from serving.tensors import Array, Item, Signature

DATATYPES = {"string": "BYTES", "number": "FP64", "integer": "INT64", "boolean": "BOOL"}
"""The Open Inference Protocol's types by JSON schema's; `format: float` makes a number FP32."""

JSON_BODY = ""
"""Field of a task that takes JSON as it is, as bytes."""

Schema = Mapping[str, Any]
Fields = Mapping[str, Any]
"""A request's values by field: str for text, bytes for bytes, numbers; or JSON's objects and lists."""

Candidate = Mapping[str, Any]
"""One possible answer: its values by field, and `index`, the class it names, where there are classes."""


@dataclass(frozen=True)
class Field:
    """Field of a request or an answer."""

    name: str
    datatype: str
    """In the Open Inference Protocol's words; BYTES also for what has no other: text, bytes, JSON."""

    is_bytes: bool = False
    """Whether it is bytes, which are base64 in JSON."""

    is_list: bool = False
    is_json: bool = False
    """Whether its BYTES are JSON text: an object, or a list of anything but scalars."""

    required: bool = True


def fields_of(schema: Schema) -> tuple[Field, ...]:
    """Returns the fields that a JSON schema of an object declares."""
    required = schema.get("required", ())
    return tuple(
        field_of(name, value, name in required) for name, value in schema.get("properties", {}).items()
    )


def field_of(name: str, schema: Schema, required: bool) -> Field:
    """Returns the field of a JSON schema; null is as good as a field that may be left out."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1 and not required:
        return field_of(name, choices[0], required)
    is_list = schema.get("type") == "array"
    value = schema.get("items", {}) if is_list else schema
    datatype = "FP32" if value.get("format") == "float" else DATATYPES.get(str(value.get("type")))
    if datatype is None:
        return Field(name, "BYTES", is_json=True, required=required)
    is_bytes = not is_list and "base64" in (schema.get("contentEncoding"), schema.get("format"))
    return Field(name, datatype, is_bytes=is_bytes, is_list=is_list, required=required)


def json_value(value: Any) -> Any:
    """Returns a field's value as JSON has it: bytes become base64."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@dataclass(slots=True)
class Prepared:
    """A request's input, ready for the engine."""

    items: Sequence[Item]
    """Usually one; a long text becomes several."""

    context: Any = None
    """What `Task.postprocess` needs of the request."""

    truncated: bool = False
    """Whether something of the request was left out."""

    runs_inline: bool = True
    """Whether `Task.postprocess` may run on the event loop, where there is one item."""


class TaskParts(NamedTuple):
    """What a task is made of."""

    model: Model
    settings: Settings
    signatures: tuple[Signature, ...] = ()
    """How the network is called, as `Task.plan` returned it."""

    schemas: Mapping[str, Any] = MappingProxyType({})
    """JSON schemas that a Python task declares, see `backends.base.DeclaredBackend`."""


class Task:
    """One model's task; `preprocess` is called on several threads at once."""

    request_signature: int | None = None
    """Signature that requests become, as an index; None if it takes tensors only."""

    tensor_signature: int | None = None
    """Signature that clients may call with tensors of their own; None if there is none."""

    request: tuple[Field, ...] = ()
    answer: tuple[Field, ...] = ()
    """Fields of a candidate."""

    takes_json: bool = False
    """Whether a JSON body is handed on unread, as the field JSON_BODY."""

    list_fields: tuple[str, ...] = ()
    """Names of fields that a body in JSON may give lists for: as many requests in one."""

    media_types: tuple[str, ...] = ()
    """Beginnings of the content types of bodies that are the value of `body_field`."""

    form_fields: tuple[str, ...] = ()
    """Names of a form's field that is the value of `body_field`."""

    labels: Sequence[str] = ()
    """Classes, by index; empty if it does not classify."""

    most_candidates: int = 1
    """Candidates that an answer may have, the largest `top_k`."""

    inline_limit: int = 0
    """Size of the largest input that `inspect` is asked of."""

    example: Fields | None = None
    """Request for the documentation."""

    limits: Mapping[str, int] = MappingProxyType({})
    """Most of what a request may have, such as `tokens`, by its unit."""

    example_type: str = "application/octet-stream"
    """Content type of a body that is the value of `body_field`."""

    request_schema: Schema = {"type": "object"}  # noqa: RUF012 nobody changes it
    """JSON schema of a request in JSON."""

    answer_schema: Schema = {"type": "object"}  # noqa: RUF012
    """JSON schema of an answer in JSON."""

    def __init__(self, parts: TaskParts) -> None:
        self._model = parts.model

    @classmethod
    def plan(cls, parts: TaskParts) -> tuple[Signature, ...]:
        """Returns how the network is called; `parts` has how the backend reads the model's file.

        Raises ConfigurationError for a graph that the task cannot use.
        """
        return parts.signatures

    @property
    def body_field(self) -> Field | None:
        """The only field that a request needs, where it may be a body that is no JSON."""
        required = [field for field in self.request if field.required]
        return required[0] if len(required) == 1 and self.media_types else None

    @property
    def json_example(self) -> Any:
        """The example as JSON has it; None if there is none."""
        if not isinstance(self.example, Mapping):
            return self.example
        return {name: json_value(value) for name, value in self.example.items()}

    def likely_items(self, size: int) -> int:
        """Returns how many items an input of so many bytes makes, about: so many slots it needs."""
        return 1

    def inspect(self, fields: Fields) -> object | None:
        """Returns what `preprocess` need not find out again if the input is cheap, else None.

        Cheap inputs are preprocessed on the event loop; small ones are cheap unless a task knows better.
        Raises RequestError.
        """
        return True

    def preprocess(self, fields: Fields, inspected: object | None = None) -> Prepared:
        """Makes the engine's items.

        Raises RequestError, or NotSupportedError if the model takes tensors only.
        """
        raise NotImplementedError

    def postprocess(
        self, prepared: Prepared, outputs: Sequence[Sequence[Array]], top_k: int
    ) -> list[Candidate]:
        """Returns up to `top_k` candidates, the best first; `outputs` has each item's arrays."""
        raise NotImplementedError

    def to_json(self, candidates: Sequence[Candidate], with_top: bool) -> Any:
        """Returns the JSON of an answer; `with_top` adds all candidates."""
        raise NotImplementedError


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


class Classification(Task):
    """Softmax or sigmoid, and the best classes of the only item's logits."""

    answer_schema = PredictResponse.model_json_schema()
    answer = fields_of(LabelProbability.model_json_schema())

    def __init__(self, parts: TaskParts) -> None:
        super().__init__(parts)
        text = parts.model.description.text
        self.labels = parts.model.labels
        self.most_candidates = len(self.labels)
        self._activation = ACTIVATIONS[text.activation if text else "softmax"]

    def postprocess(
        self, prepared: Prepared, outputs: Sequence[Sequence[Array]], top_k: int
    ) -> list[Candidate]:
        """Returns the most probable classes."""
        ((logits,),) = outputs
        return [vars(score) for score in best(self.labels, logits, top_k, self._activation)]

    def to_json(self, candidates: Sequence[Candidate], with_top: bool) -> dict[str, Any]:
        """Returns the best class, and with `with_top` all candidates."""
        first = candidates[0]
        content = {"prediction": first["label"], "probability": first["probability"]}
        if with_top:
            content["top"] = [
                {"label": candidate["label"], "probability": candidate["probability"]}
                for candidate in candidates
            ]
        return content
