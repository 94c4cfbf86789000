"""Asks the API what a visitor has sent, a photo or what a form was filled in with; for `views.py`."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from flask import g, request

from flask_app import words
from flask_app.answers import Outcome, outcome_of
from flask_app.api_client import ApiClient
from flask_app.errors import ApiAnswerError, ApiError, PageError, UploadError
from flask_app.feedback import Feedback
from flask_app.photos import Decoder, Photo
from flask_app.samples import Sample, sample
from flask_app.service import ModelInfo, Service
from flask_app.settings import Settings
from flask_app.uploads import uploads

MAX_PHOTOS = MAX_TEXTS = 24
SPARE_THREADS = 2  # never wait for the API or decode, so that the page itself always answers


class Asking:
    """Asks the model of the current request."""

    def __init__(
        self, settings: Settings, api: ApiClient, service: Service, feedback: Feedback, decoder: Decoder
    ) -> None:
        self._max_bytes = settings.max_upload_bytes
        self._api = api
        self._service = service
        self._feedback = feedback
        self._decoder = decoder
        # Triton does not describe its model; the page's requests are for the one of this repository
        self._unknown = ModelInfo("food11") if settings.api_protocol == "triton" else ModelInfo()
        self._slots = threading.BoundedSemaphore(settings.threads - SPARE_THREADS)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Reserves one of the threads that may call the API or decode. Raises PageError."""
        if not self._slots.acquire(blocking=False):
            detail = "too many requests at the same time"
            raise PageError("overloaded", detail, {"Retry-After": "1"})
        try:
            yield
        finally:
            self._slots.release()

    def model(self) -> ModelInfo:
        """Returns what is known of the model; it classifies photos if nothing is."""
        return self._service.model(g.get("model", "")) or self._unknown

    def pipeline(self) -> Mapping[str, Any] | None:  # Any: JSON
        """Returns how to prepare photos for a model that takes tensors; None for the others."""
        model = self.model()
        return self._api.pipeline(model.name if model.is_one_of_several else None)

    def outcome(self, content: Any) -> Outcome:  # Any: a Photo, or JSON
        """Asks with a photo or the JSON of a request. Raises PageError."""
        if isinstance(content, Photo):
            return self._photo(content.content)
        model = self._loaded_model()
        answer = self._api.ask(model.path, json.dumps(content).encode(), g.visit)
        return outcome_of(model, content, answer)

    def _photo(self, content: bytes) -> Outcome:
        if not content:
            raise UploadError("no_photo", "the file is empty")
        if len(content) > self._max_bytes:
            raise UploadError("payload_too_large")
        model = self.model()
        name = model.name if model.is_one_of_several else None
        image = self._decoder.for_the_api(content)
        if pipeline := self.pipeline():
            image = self._decoder.tensor(image, pipeline)
        answer = self._api.predict(image, g.visit, words.PHOTOS.top_k(model.labels), name)
        outcome = outcome_of(model, None, answer)
        best = outcome.answer.body
        token = self._feedback.sign(
            content, best["prediction"], best["probability"], model.name_and_version
        )
        return replace(outcome, token=token)

    def _loaded_model(self) -> ModelInfo:
        model = self._service.model(g.model)
        if model is None:
            raise ApiError("api_unreachable")
        if model.view is words.WAITING:
            raise ApiAnswerError(503, {"code": "unavailable", "detail": model.description}, {})
        return model

    def example(self) -> Any:  # a Photo, or JSON
        """Returns a sample or the model's example. Raises UploadError if it has neither."""
        for each in self.model().samples:
            return each.read() if isinstance(each, Sample) else {"text": each}
        example = self._loaded_model().example
        if example is None:
            raise UploadError("invalid_form", "this model has no example request")
        return example

    def form(self) -> Any:  # JSON
        """Returns the request that a form was filled in with. Raises PageError."""
        model = self._loaded_model()
        content = model.form.request(request.form, request.files)
        if model.view is words.EMBEDDINGS:
            content["text"] = few([line.strip() for line in content["text"]])
        return content

    def plain_form(self) -> list[tuple[str, Any]]:  # Any: Photos, or JSON
        """Returns the requests of a form without script, with their names: photos, lines, or one.

        Raises PageError.
        """
        view = self.model().view
        if view is words.PHOTOS:
            key = request.form.get("sample")
            photos = [sample(key).read()] if key else uploads()
            if not photos:
                raise UploadError("no_photo")
            if len(photos) > MAX_PHOTOS:
                raise UploadError("too_many_photos", f"more than {MAX_PHOTOS} photos")
            return [(photo.name, photo) for photo in photos]
        if view is not words.TEXTS:
            return [(request.form.get(view.named_by, ""), self.form())]
        lines = [line.strip() for line in request.form.get("text", "").splitlines() if line.strip()]
        form = self._loaded_model().form
        return [
            (line, form.request({**request.form, "text": line}, request.files)) for line in few(lines)
        ]


def few(texts: list[str]) -> list[str]:
    """Returns the texts of a form. Raises UploadError if there are none, or too many."""
    if not texts:
        raise UploadError("invalid_form", "enter a text")
    if len(texts) > MAX_TEXTS:
        raise UploadError("too_many_texts", f"at most {MAX_TEXTS} lines are accepted")
    return texts
