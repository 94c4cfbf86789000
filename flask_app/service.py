"""Keeps what the page knows about the API: whether it is ready, and which model it serves."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from flask_app import words
from flask_app.api_client import ApiClient
from flask_app.errors import ApiError

KEEP_S = 10.0
DEFAULT_SIDE = 224


@dataclass(frozen=True)
class ModelInfo:
    """Served model, as far as the page shows it."""

    name: str = ""
    version: str = ""
    labels: tuple[str, ...] = ()
    backend: str = ""
    device: str = ""
    provider: str = ""
    precision: str = ""
    precision_reason: str = ""
    side: int = DEFAULT_SIDE
    """Short side in pixels to which the service resizes an image."""

    thresholds: words.Thresholds = field(default_factory=words.Thresholds)

    @property
    def title(self) -> str:
        """Name and version in one string."""
        return f"{self.name} {self.version}".strip()


@dataclass(frozen=True)
class Status:
    """State of the API, the reason when it is not ready, and the model if known."""

    state: Literal["ready", "loading", "down"]
    reason: str | None
    model: ModelInfo | None


class Service:
    """Asks the API about itself and remembers the model for KEEP_S seconds."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._model: ModelInfo | None = None
        self._asked: float | None = None
        self._asking = threading.Lock()
        self._status: Status | None = None

    def model(self) -> ModelInfo | None:
        """Returns the served model, or the last known one while the API does not answer."""
        with self._lock:
            now = time.monotonic()
            if self._asked is not None and now - self._asked < KEEP_S:
                return self._model
            self._asked = now
        try:
            model = _model_info(self._api.model())
        except ApiError:
            return self._model
        self._model = model
        return model

    def status(self) -> Status:
        """Returns the current status; the last one while another thread is asking.

        So an API that hangs blocks one thread only.
        """
        if not self._asking.acquire(blocking=self._status is None):
            assert self._status is not None  # noqa: S101 it stays, once it is known
            return self._status
        try:
            self._status = self._ask()
            return self._status
        finally:
            self._asking.release()

    def _ask(self) -> Status:
        try:
            reason = self._api.not_ready()
        except ApiError as error:
            return Status("down", error.detail, self._model)
        if reason is not None:
            return Status("loading", reason, self._model)
        if self._model is None:
            self._asked = None  # it was asked for while the API was still starting
        return Status("ready", None, self.model())


def _model_info(raw: Mapping[str, Any]) -> ModelInfo:  # Any: JSON of the API
    """Builds ModelInfo from the fields that have the right type.

    The API may be older or newer than the page.
    """

    def text(key: str) -> str:
        value = raw.get(key)
        return str(value) if isinstance(value, str | int | float) else ""

    labels = raw.get("labels")
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
    )


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
