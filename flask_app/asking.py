"""Answers texts, questions and filled-in forms; photos have their own way, see `views.py`."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from flask import Response, g, jsonify, render_template, request

from flask_app import words
from flask_app.answers import Outcome, outcome_of
from flask_app.api_client import ApiClient
from flask_app.errors import (
    ApiAnswerError,
    ApiUnreachableError,
    FormError,
    PageError,
    TooManyTextsError,
)
from flask_app.service import ModelInfo, Service
from flask_app.settings import Settings

MAX_TEXTS = 24
CLASSES, SPANS = 10, 5
"""Candidates that are shown at most."""


@dataclass(frozen=True)
class Asked:
    """Request on a page that the server renders, with its outcome or its error."""

    name: str
    outcome: Outcome | None
    error: words.ErrorWords | None


class Asking:
    """Answers requests that a form has made."""

    def __init__(
        self,
        settings: Settings,
        api: ApiClient,
        service: Service,
        slot: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`slot` reserves a thread that may call the API."""
        self._settings = settings
        self._api = api
        self._service = service
        self._slot = slot

    def ask(self) -> Response:
        """Answers one request of the script: the API's JSON, the words, and the HTML of both."""
        model = self._model()
        asked = model.form.request(request.form, request.files)
        with self._slot():
            outcome = self.outcome(model, asked)
        html = self.html(outcome)
        verdict = outcome.verdict
        page = {"sentence": verdict.sentence, "sure": verdict.sure, "note": verdict.note, "html": html}
        response = jsonify({"answer": outcome.answer.body, "page": page})
        response.headers.update(outcome.answer.headers)
        return response

    def post(self, words_of: Callable[[PageError], words.ErrorWords]) -> list[Asked]:
        """Answers a plain form; raises PageError if nothing in it was answered."""
        model = self._model()
        asked, failures = [], []
        with self._slot():
            for name, content in self._requests(model):
                try:
                    asked.append(Asked(name, self.outcome(model, content), None))
                except PageError as error:
                    failures.append(error)
                    asked.append(Asked(name, None, words_of(error)))
        if len(failures) == len(asked):
            raise failures[0]
        return asked

    def outcome(self, model: ModelInfo, content: Any) -> Outcome:  # Any: JSON
        """Asks the API. Raises ApiError."""
        path = {
            "text": f"{model.predict_path}?top_k={max(1, min(CLASSES, len(model.labels)))}",
            "question": f"{model.predict_path}?top_k={SPANS}",
            "tensors": f"/v2/models/{model.name}/infer",
        }.get(model.view, model.predict_path)
        client_left = request.environ.get("waitress.client_disconnected", lambda: False)
        body = json.dumps(content).encode()
        answer = self._api.ask(path, body, g.request_id, client_left, g.traceparent)
        return outcome_of(model, content, answer, path)

    def html(self, outcome: Outcome) -> str:
        """Renders an outcome."""
        settings = self._settings
        return render_template(
            "answer.html",
            outcome=outcome,
            api_url=settings.public_api_url or settings.api_url,
            keyed=settings.api_key is not None,
        )

    def example(self) -> Outcome:
        """Asks the model's own example. Raises FormError if it has none, or ApiError."""
        model = self._model()
        if model.example is None:
            raise FormError("this model has no example request")
        with self._slot():
            return self.outcome(model, model.example)

    def _model(self) -> ModelInfo:
        model = self._service.model(g.model)
        if model is None:
            raise ApiUnreachableError
        if model.view == "waiting":
            raise ApiAnswerError(503, {"code": "unavailable", "detail": model.description}, {})
        return model

    @staticmethod
    def _requests(model: ModelInfo) -> list[tuple[str, Any]]:  # Any: JSON
        """Returns the requests of a plain form, with their names: one, or one for each line of text."""
        if model.view == "question":
            return [(request.form.get("question", ""), model.form.request(request.form, request.files))]
        if model.view != "text":
            return [("", model.form.request(request.form, request.files))]
        lines = [line.strip() for line in request.form.get("text", "").splitlines()]
        lines = [line for line in lines if line]
        if not lines:
            raise FormError("enter a text")
        if len(lines) > MAX_TEXTS:
            raise TooManyTextsError(f"more than {MAX_TEXTS} lines")
        return [
            (line, model.form.request({**request.form, "text": line}, request.files)) for line in lines
        ]
