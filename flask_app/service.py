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
from flask_app.samples import OF_VIEWS, Sample

KEEP_S = 10.0
DEFAULT_SIDE = 224
ZEROS = 64  # numbers of a tensor that the page writes as an example
HOST = ("backend", "device", "precision", "precision_reason")
TEXTS = ("name", "version", "title", "description", "task", "execution_provider", *HOST)
State = Literal["ready", "asleep", "loading", "unavailable", "down"]


@dataclass(frozen=True)
class ModelState:
    """One of the models that the service lists."""

    title: str
    state: State
    reason: str  # why it is not ready, or what the next request waits for


@dataclass(frozen=True)
class ModelInfo:
    """Served model, as far as the page shows it."""

    name: str = ""
    version: str = ""
    title: str = ""
    description: str = ""
    task: str = ""
    backend: str = ""
    device: str = ""
    execution_provider: str = ""
    precision: str = ""
    precision_reason: str = ""
    is_one_of_several: bool = False
    is_described: bool = True  # by the service, once the model is loaded
    labels: tuple[str, ...] = ()
    side: int = DEFAULT_SIDE  # short side in pixels to which the service resizes an image
    thresholds: words.Thresholds = field(default_factory=words.Thresholds)
    independent: bool = False  # whether the classes do not exclude each other
    request_schema: Mapping[str, Any] | None = None  # Any: JSON
    answer_schema: Mapping[str, Any] = field(default_factory=dict)
    example: Any = None
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def name_and_version(self) -> str:
        """Both in one string."""
        return f"{self.name} {self.version}".strip()

    @property
    def path(self) -> str:
        """Where the API takes its requests."""
        if self.view is words.TENSORS:
            return f"/v2/models/{self.name}/infer"
        path = f"/predict/{self.name}" if self.is_one_of_several else "/predict"
        top_k = self.view.top_k(self.labels)
        return f"{path}?top_k={top_k}" if top_k else path

    @cached_property
    def view(self) -> words.View:
        """What the page looks like for this model."""
        if not self.is_described:
            return words.WAITING
        view = words.SPECIAL.get(self.task)
        if view and view.fields.keys() <= self._plain_form.by_name.keys():
            return view
        if not self.task:
            return words.PHOTOS  # an API without tasks classifies images
        return words.TENSORS if self.request_schema is None else words.FORM

    @cached_property
    def _plain_form(self) -> Form:
        return form_of(self.request_schema or {}, self.example, self.limits)

    @cached_property
    def form(self) -> Form:
        """Form of its requests, with the fields of its view as the view shows them."""
        form, changes = self._plain_form, self.view.fields
        return replace(
            form, fields=tuple(replace(each, **changes.get(each.name, {})) for each in form.fields)
        )

    @property
    def samples(self) -> tuple[Sample, ...] | tuple[str, ...]:
        """What the page offers to try."""
        return OF_VIEWS.get(self.view.name, {}).get(self.name, ())

    @property
    def said(self) -> words.View:
        """Words of the page, the model's own where it has any."""
        view = self.view
        heading = self.title or view.heading.format(name=self.name or "the model")
        knows = words.INDEPENDENT if self.independent else view.knows
        return replace(view, heading=heading, lead=self.description or view.lead, knows=knows)

    @cached_property
    def shape(self) -> str:
        """Digest of what the page is made of; another one needs another page."""
        said = self.said
        parts = [said.name, said.heading, said.lead, self.request_schema, self.example]
        text = json.dumps([*parts, self.answer_schema, self.limits, self.labels], default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def status(self) -> dict[str, Any]:  # Any: JSON
        """Returns what the page's script is told of the model."""
        said = self.said
        shown = {name: getattr(self, name) for name in ("labels", "side", "shape", *HOST)}
        words_of = {"view": said.name, "heading": said.heading, "lead": said.lead}
        more = {"provider": self.execution_provider, "samples": bool(self.samples)}
        return {"title": self.name_and_version, **shown, **more, **words_of}


@dataclass(frozen=True)
class Status:
    """State of a model, the reason when it is not ready, and the model if known."""

    state: State
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
        self._times: dict[str, float] = {}  # when each was last asked for
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
            if name in self._times and now - self._times[name] < KEEP_S:
                return self._last(name)
            self._times[name] = now
        with suppress(ApiError):
            self._models[name] = self._learn(name)
        return self._last(name)

    def _key(self, name: str) -> str:
        return "" if name == next(iter(self._states), "") else name

    def _last(self, name: str) -> ModelInfo | None:
        """Returns the model as it was last described; a listed one may not have been as yet."""
        state = self._states.get(name)
        if name in self._models or state is None:
            return self._models.get(name)
        return ModelInfo(
            name,
            is_one_of_several=True,
            is_described=False,
            title=state.title,
            description=words.not_in_service(state.state, state.reason),
        )

    def _learn(self, name: str) -> ModelInfo:
        raw = self._api.model(name or None)
        if not name:
            self._states = _states(raw.get("models"))
        model = replace(_model_info(raw), is_one_of_several=len(self._states) > 1)
        if model.view is words.TENSORS:
            errors = (ApiError, AttributeError, LookupError, TypeError, ValueError)
            with suppress(*errors):  # the page does without
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
            return Status("down", error.detail, self._last(name))
        may_change = len(self._states) > 1 or any(s.state == "asleep" for s in self._states.values())
        if may_change or (reason is None and "" not in self._models):
            self._times.pop("", None)  # the API may have been starting
        states = self.states()
        state = states.get(name or next(iter(states), ""))
        if state and state.state == "asleep" and reason is None:
            return Status("asleep", words.sentence(state.reason), self.model(name))
        if state is None or len(states) == 1:
            return Status("ready" if reason is None else "loading", reason, self.model())
        if state.state == "ready" and name not in self._models:
            self._times.pop(name, None)  # it has just come into service
        return Status(state.state, state.reason or None, self.model(name))


def _model_info(raw: Mapping[str, Any]) -> ModelInfo:  # Any: JSON of the API
    """Builds ModelInfo from the fields that have the right type.

    The API may be older or newer than the page.
    """
    texts: dict[str, Any] = {  # Any: the other fields have other types
        name: str(raw[name]) for name in TEXTS if isinstance(raw.get(name), str | int | float)
    }
    labels, pipeline = raw.get("labels"), raw.get("text") or raw.get("image")
    request_schema, answer_schema = raw.get("request_schema"), raw.get("answer_schema")
    return ModelInfo(
        **texts,
        labels=tuple(map(str, labels)) if isinstance(labels, list) else (),
        side=_side(raw.get("image")),
        thresholds=_thresholds(raw.get("thresholds")),
        independent=isinstance(pipeline, dict) and pipeline.get("activation") == "sigmoid",
        request_schema=_with_prompts(request_schema, raw.get("embedding")),
        answer_schema=answer_schema if isinstance(answer_schema, dict) else {},
        example=raw.get("example"),
        limits=_numbers(raw.get("limits")),
    )


def _with_prompts(schema: Any, pipeline: object) -> Mapping[str, Any] | None:  # Any: JSON
    """Returns a request's schema, in which an embedding model's prompts are a choice, if it has any."""
    fields = schema.get("properties") if isinstance(schema, dict) else None
    if isinstance(fields, dict) and isinstance(pipeline, dict) and "prompt_name" in fields:
        prompts = pipeline.get("prompts")
        known = {"prompt_name": {**fields["prompt_name"], "enum": [*prompts]}} if prompts else {}
        others = {name: each for name, each in fields.items() if name != "prompt_name"}
        return {**schema, "properties": others | known}
    return schema if isinstance(schema, dict) else None


def _states(raw: object) -> dict[str, ModelState]:
    """Returns the models that are listed as they are documented."""
    states = {}
    for row in raw if isinstance(raw, list) else ():
        name, state = (row.get("name"), row.get("state")) if isinstance(row, dict) else (None, None)
        if isinstance(name, str) and state in ("ready", "asleep", "loading", "unavailable"):
            title, reason = str(row.get("title") or ""), str(row.get("reason") or "")
            states[name] = ModelState(title, state, reason)
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
