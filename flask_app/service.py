"""Keeps what the page knows about the API: whether it is ready, and which models it serves."""

import hashlib
import json
import math
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from flask_app import words
from flask_app.api_client import ApiClient
from flask_app.errors import ApiError
from flask_app.forms import Form, form_of

KEEP_S = 10.0
DEFAULT_SIDE = 224
ZEROS = 64  # numbers of a tensor that the page writes as an example
IMAGES = ("", "image-classification")  # an API without tasks classifies images


@dataclass(frozen=True)
class ModelState:
    """One of the models that the service lists."""

    name: str
    title: str
    state: Literal["ready", "loading", "unavailable"]
    reason: str
    """Why it is not ready."""


@dataclass(frozen=True)
class ModelInfo:
    """Served model, as far as the page shows it."""

    name: str = ""
    is_one_of_several: bool = False
    is_described: bool = True
    """Whether the service has described it, which it does once the model is loaded."""

    version: str = ""
    heading: str = ""
    description: str = ""
    task: str = ""
    labels: tuple[str, ...] = ()
    backend: str = ""
    device: str = ""
    provider: str = ""
    precision: str = ""
    precision_reason: str = ""
    side: int = DEFAULT_SIDE
    """Short side in pixels to which the service resizes an image."""

    thresholds: words.Thresholds = field(default_factory=words.Thresholds)
    independent: bool = False
    """Whether the classes of a text do not exclude each other."""

    request_schema: Mapping[str, Any] | None = None  # Any: JSON
    answer_schema: Mapping[str, Any] = field(default_factory=dict)
    example: Any = None
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name and version in one string."""
        return f"{self.name} {self.version}".strip()

    @property
    def predict_path(self) -> str:
        """Where the API takes its requests."""
        return f"/predict/{self.name}" if self.is_one_of_several else "/predict"

    @property
    def view(self) -> words.View:
        """What the page looks like for this model."""
        if not self.is_described:
            return "waiting"
        fields = self.form.by_name
        if self.task in IMAGES:
            return "photos"
        if self.task == "text-classification" and "text" in fields:
            return "text"
        if self.task == "question-answering" and {"question", "context"} <= fields.keys():
            return "question"
        return "tensors" if self.request_schema is None else "form"

    @cached_property
    def form(self) -> Form:
        """Form of its requests."""
        return form_of(self.request_schema or {}, self.example, self.limits)

    @property
    def said(self) -> words.ViewWords:
        """Words of the page, the model's own where it has any."""
        said = words.VIEWS[self.view]
        heading = self.heading or said.heading.format(name=self.name or "the model")
        knows = words.INDEPENDENT if self.independent else said.knows
        return replace(said, heading=heading, lead=self.description or said.lead, knows=knows)

    @cached_property
    def shape(self) -> str:
        """Digest of what the page is made of; another one needs another page."""
        made_of = [self.view, self.said.heading, self.said.lead, self.request_schema, self.example]
        text = json.dumps([*made_of, self.answer_schema, self.limits, self.labels], default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Status:
    """State of a model, the reason when it is not ready, and the model if known."""

    state: Literal["ready", "loading", "unavailable", "down"]
    reason: str | None
    model: ModelInfo | None


class Service:
    """Asks the API about itself and remembers each model for KEEP_S seconds.

    Models are known by name; the empty name is the default model's.
    """

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._models: dict[str, ModelInfo] = {}
        self._states: dict[str, ModelState] = {}
        self._asked: dict[str, float] = {}
        self._asking = threading.Lock()
        self._statuses: dict[str, Status] = {}

    def states(self) -> Mapping[str, ModelState]:
        """Returns the models that the service lists, the default first; none if it lists none."""
        self.model()
        return self._states

    def model(self, name: str = "") -> ModelInfo | None:
        """Returns a served model, or the last known one while the API does not answer."""
        name = self._key(name)
        with self._lock:
            now = time.monotonic()
            if name in self._asked and now - self._asked[name] < KEEP_S:
                return self._known(name)
            self._asked[name] = now
        with suppress(ApiError):
            self._models[name] = self._learn(name)
        return self._known(name)

    def _key(self, name: str) -> str:
        return "" if name == next(iter(self._states), "") else name

    def _known(self, name: str) -> ModelInfo | None:
        """Returns the model as it was last described; a listed one may not have been as yet."""
        state = self._states.get(name)
        if name in self._models or state is None:
            return self._models.get(name)
        return ModelInfo(
            name,
            is_one_of_several=True,
            is_described=False,
            heading=state.title,
            description=words.waiting(state.state, state.reason),
        )

    def _learn(self, name: str) -> ModelInfo:
        raw = self._api.model(name or None)
        if not name:
            self._states = _states(raw.get("models"))
        model = replace(_model_info(raw), is_one_of_several=len(self._states) > 1)
        if model.view == "tensors":
            with suppress(ApiError, LookupError, TypeError, ValueError):  # the page does without
                return replace(model, example=_tensors_example(self._api.tensors(model.name)))
        return model

    def status(self, name: str = "") -> Status:
        """Returns the current status; the last one while another thread is asking.

        So an API that hangs blocks one thread only.
        """
        name = self._key(name)
        if not self._asking.acquire(blocking=name not in self._statuses):
            return self._statuses[name]
        try:
            self._statuses[name] = self._ask(name)
            return self._statuses[name]
        finally:
            self._asking.release()

    def _ask(self, name: str) -> Status:
        try:
            reason = self._api.not_ready()
        except ApiError as error:
            return Status("down", error.detail, self._known(name))
        if len(self._states) > 1 or (reason is None and "" not in self._models):
            self._asked.pop("", None)  # states change, and the API may have been starting
        states = self.states()
        state = states.get(name or next(iter(states), ""))
        if state is None or len(states) == 1:
            return Status("ready" if reason is None else "loading", reason, self.model())
        if state.state == "ready" and name not in self._models:
            self._asked.pop(name, None)  # it has just come into service
        return Status(state.state, state.reason or None, self.model(name))


def _model_info(raw: Mapping[str, Any]) -> ModelInfo:  # Any: JSON of the API
    """Builds ModelInfo from the fields that have the right type.

    The API may be older or newer than the page.
    """

    def text(key: str) -> str:
        value = raw.get(key)
        return str(value) if isinstance(value, str | int | float) else ""

    labels, texts = raw.get("labels"), raw.get("text")
    request_schema, answer_schema = raw.get("request_schema"), raw.get("answer_schema")
    return ModelInfo(
        name=text("name"),
        version=text("version"),
        labels=tuple(str(label) for label in labels) if isinstance(labels, list) else (),
        backend=text("backend"),
        device=text("device"),
        provider=text("execution_provider"),
        precision=text("precision"),
        precision_reason=text("precision_reason"),
        side=_side(raw.get("image")),
        thresholds=_thresholds(raw.get("thresholds")),
        heading=text("title"),
        description=text("description"),
        task=text("task"),
        independent=isinstance(texts, dict) and texts.get("activation") == "sigmoid",
        request_schema=request_schema if isinstance(request_schema, dict) else None,
        answer_schema=answer_schema if isinstance(answer_schema, dict) else {},
        example=raw.get("example"),
        limits=_numbers(raw.get("limits")),
    )


def _states(raw: object) -> dict[str, ModelState]:
    """Returns the models that are listed as they are documented."""
    states = {}
    for row in raw if isinstance(raw, list) else ():
        name, state = (row.get("name"), row.get("state")) if isinstance(row, dict) else (None, None)
        if isinstance(name, str) and state in ("ready", "loading", "unavailable"):
            title, reason = str(row.get("title") or ""), str(row.get("reason") or "")
            states[name] = ModelState(name, title, state, reason)
    return states


def _numbers(raw: object) -> dict[str, int]:
    items = raw.items() if isinstance(raw, dict) else ()
    return {str(name): value for name, value in items if isinstance(value, int)}


def _tensors_example(metadata: Mapping[str, Any]) -> Any:  # Any: JSON
    """Returns a request of zeros in the Open Inference Protocol; large tensors are left empty."""
    inputs = []
    for spec in metadata.get("inputs", []):
        shape = [max(1, side) for side in spec["shape"]]
        count = math.prod(shape)
        zero = False if spec["datatype"] == "BOOL" else 0
        data = [zero] * count if count <= ZEROS else []
        inputs.append({**spec, "shape": shape, "data": data})
    return {"inputs": inputs}


def _side(pipeline: object) -> int:
    size = pipeline.get("resize") if isinstance(pipeline, dict) else None
    if isinstance(size, list) and size and all(isinstance(side, int) for side in size):
        size = max(size)
    return size if isinstance(size, int) and 0 < size <= 4096 else DEFAULT_SIDE


def _thresholds(raw: object) -> words.Thresholds:
    if isinstance(raw, dict):
        probability, margin = raw.get("probability"), raw.get("margin")
        if isinstance(probability, int | float) and isinstance(margin, int | float):
            return words.Thresholds(float(probability), float(margin))
    return words.Thresholds()
