"""Routes of the page: read what the browser sent, ask the API, answer in words.

What is not about photos is answered in `asking.py`.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from flask import Flask, Response, g, jsonify, make_response, render_template, request, url_for
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter

from flask_app import words
from flask_app.api_client import TOP_K, Answer, ApiClient
from flask_app.asking import Asked, Asking
from flask_app.errors import (
    ApiAnswerError,
    BadFeedbackError,
    NoPhotoError,
    PageBusyError,
    PageError,
    TooLargeError,
    TooManyPhotosError,
    UploadError,
)
from flask_app.feedback import NONE_OF_THESE, Feedback
from flask_app.photos import Decoder, Photo
from flask_app.samples import PARAGRAPHS, SAMPLES, TEXTS, sample
from flask_app.service import ModelInfo, Service
from flask_app.settings import Settings
from flask_app.uploads import one_upload, uploads

MAX_PHOTOS = 24
JSON_PATHS = ("/classify", "/ask", "/status", "/healthz")
OWN_PATHS = (*JSON_PATHS, "/test", "/feedback")
SPARE_THREADS = 2  # never wait for the API or decode, so that the page itself always answers


class ModelName(BaseConverter):
    """Name of a model as a path of the page, where the page has no such path itself."""

    regex = rf"(?!(?:{'|'.join(path[1:] for path in OWN_PATHS)})$)[A-Za-z0-9][A-Za-z0-9._-]*"


@dataclass(frozen=True)
class Outcome:
    """Answer for one photo, with the token that feedback about it needs."""

    answer: Answer
    verdict: words.Verdict
    token: str | None


@dataclass(frozen=True)
class Card:
    """Photo on a page that the server renders, with its outcome or its error."""

    name: str
    thumbnail: str | None
    outcome: Outcome | None
    error: words.ErrorWords | None


class Views:
    """Routes of one application."""

    def __init__(self, settings: Settings, api: ApiClient, service: Service, feedback: Feedback) -> None:
        self.settings = settings
        self.api = api
        self.service = service
        self.feedback = feedback
        self._decoder = Decoder()
        self._slots = threading.BoundedSemaphore(settings.threads - SPARE_THREADS)
        self._asking = Asking(settings, api, service, self._slot)

    def add_to(self, app: Flask) -> None:
        """Registers the routes."""
        app.add_url_rule("/", view_func=self.index)
        app.add_url_rule("/", view_func=self.post, methods=["POST"])
        app.add_url_rule("/<model:model>", "tab", self.index)
        app.add_url_rule("/<model:model>", "post_tab", self.post, methods=["POST"])
        app.add_url_rule("/classify", view_func=self.classify, methods=["POST"])
        app.add_url_rule("/ask", view_func=self._asking.ask, methods=["POST"])
        app.add_url_rule("/test", view_func=self.test)
        app.add_url_rule("/status", view_func=self.status)
        app.add_url_rule("/healthz", view_func=self.healthz)
        app.add_url_rule("/feedback", view_func=self.save_feedback, methods=["POST"])
        app.add_url_rule("/feedback/undo", view_func=self.undo_feedback, methods=["POST"])

    def index(self, model: str = "") -> str:  # noqa: ARG002 it is in `g`
        """Returns the page without any answer."""
        return self.page([])

    def post(self, model: str = "") -> Response:  # noqa: ARG002
        """Answers a plain form with a full page."""
        if self._view() != "photos":
            return make_response(self.page(self._asking.post(self.words_of)))
        key = request.form.get("sample")
        photos = [sample(key).read()] if key else uploads()
        if not photos:
            raise NoPhotoError
        if len(photos) > MAX_PHOTOS:
            raise TooManyPhotosError(f"more than {MAX_PHOTOS} photos")
        cards = []
        failures: list[PageError] = []
        with self._slot():
            for photo in photos:
                outcome, error = self._try(photo)
                failures += [error] if error else []
                said = self.words_of(error) if error else None
                thumbnail = self._decoder.thumbnail(photo.content)
                cards.append(Card(photo.name, thumbnail, outcome, said))
        response = make_response(self.page(cards))
        if len(failures) == len(cards):
            response.status_code = failures[0].status
            response.headers.update(failures[0].headers)
        return response

    def classify(self) -> Response:
        """Answers one photo (the body itself, or a form) with the API's JSON and the key `page`."""
        photo = one_upload()
        with self._slot():
            outcome = self._classify(photo)
        page = {**asdict(outcome.verdict), "feedback_token": outcome.token}
        response = jsonify({**outcome.answer.body, "page": page})
        response.headers.update(outcome.answer.headers)
        return response

    def test(self) -> str:
        """Asks with a sample and shows the answer as text: tests page, API and model together."""
        if self._view() != "photos":
            asked = self._asking.example()
            return render_template("test.html", outcome=asked, heading=asked.verdict.sentence)
        soup = sample("soup")
        with self._slot():
            outcome = self._classify(soup.read())
        heading = outcome.answer.body["prediction"]
        return render_template("test.html", sample=soup, outcome=outcome, heading=heading)

    def status(self) -> Response:
        """Returns the status that the page's script polls, as JSON."""
        status = self.service.status(g.model)
        states = self.service.states()
        model = status.model and {
            "title": status.model.title,
            "labels": status.model.labels,
            "backend": status.model.backend,
            "device": status.model.device,
            "provider": status.model.provider,
            "precision": status.model.precision,
            "precision_reason": status.model.precision_reason,
            "side": status.model.side,
            "view": status.model.view,
            "shape": status.model.shape,
            "heading": status.model.said.heading,
            "lead": status.model.said.lead,
        }
        models = [
            {"name": name, "state": each.state} for name, each in states.items() if len(states) > 1
        ]
        body = {"state": status.state, "reason": status.reason, "model": model, "models": models}
        return jsonify(body)

    def healthz(self) -> Response:
        """Returns 200 while the page itself works; only reports the API's state."""
        return jsonify({"status": "ok", "api": self.service.status().state})

    def save_feedback(self) -> Response:
        """Saves whether the prediction is right, or the correct label."""
        right = request.form.get("verdict") == "right"
        corrected = request.form.get("corrected", "")
        if not right and not corrected:
            raise BadFeedbackError("choose the right label")
        model = self.service.model(g.model)
        photo = request.files.get("photo")
        self.feedback.save(
            request.form.get("token", ""),
            None if right else corrected,
            model.labels if model else (),
            photo.read() if photo else None,
            request.remote_addr or "",
        )
        return self._message("Thanks, saved.", undo=request.form.get("token"))

    def undo_feedback(self) -> Response:
        """Undoes feedback that was saved before."""
        self.feedback.undo(request.form.get("token", ""), request.remote_addr or "")
        return self._message("Feedback removed.")

    def page(self, cards: Sequence[Card | Asked], problem: words.ErrorWords | None = None) -> str:
        """Renders the whole page; what was typed stays in it."""
        settings = self.settings
        model = self.service.model(g.model) or ModelInfo()
        states = self.service.states() if model.is_one_of_several else {}
        named = {"model": model.name} if model.is_one_of_several else {}
        return render_template(
            "page.html",
            cards=cards,
            problem=problem,
            model=model,
            named=named,
            address=_address(model.name) if named else url_for("index"),
            tabs=[(state, _address(name)) for name, state in states.items()],
            said=model.said,
            view=model.view,
            typed=_typed(),
            samples=SAMPLES,
            texts=TEXTS,
            paragraphs=PARAGRAPHS,
            feedback=self.feedback,
            none_of_these=NONE_OF_THESE,
            max_bytes=settings.max_upload_bytes,
            max_mb=settings.max_upload_mb,
            api_url=settings.public_api_url or settings.api_url,
            keyed=settings.api_key is not None,
            protocol=settings.api_protocol,
        )

    def words_of(self, error: PageError) -> words.ErrorWords:
        """Returns what happened and what to do, with the page's own size limit in it."""
        said = words.error(error.code, error.status, self._view(), error.detail)
        if error.code == "payload_too_large" and not isinstance(error, ApiAnswerError):
            limit = self.settings.max_upload_mb
            return words.ErrorWords(said.title, f"The limit is {limit} MB. {said.advice}")
        return said

    @property
    def shows_a_form(self) -> bool:
        """Whether an error is shown above what was typed, so that nothing of it is lost."""
        return self._view() != "photos"

    def _view(self) -> words.View:
        return (self.service.model(g.get("model", "")) or ModelInfo()).view

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """Reserves one of the threads that may call the API or decode. Raises PageBusyError."""
        if not self._slots.acquire(blocking=False):
            raise PageBusyError
        try:
            yield
        finally:
            self._slots.release()

    def _classify(self, photo: Photo) -> Outcome:
        if not photo.content:
            raise NoPhotoError("the file is empty")
        if len(photo.content) > self.settings.max_upload_bytes:
            raise TooLargeError
        content = self._decoder.for_the_api(photo.content)
        client_left = request.environ.get("waitress.client_disconnected", lambda: False)
        model = self.service.model(g.model) or ModelInfo()
        top_k = min(TOP_K, len(model.labels) or TOP_K)
        name = model.name if model.is_one_of_several else None
        answer = self.api.predict(content, g.request_id, client_left, g.traceparent, top_k, name)
        verdict = words.verdict(answer.top, model.thresholds)
        token = self.feedback.sign(photo.content, *answer.top[0], model.title)
        return Outcome(answer, verdict, token)

    def _try(self, photo: Photo) -> tuple[Outcome | None, PageError | None]:
        """Returns the outcome or the error, so that one photo's error stays on its card."""
        try:
            return self._classify(photo), None
        except PageError as error:
            return None, error

    def _message(self, title: str, undo: str | None = None) -> Response:
        if _wants_json():
            return jsonify({"detail": title})
        return make_response(render_template("message.html", title=title, undo=undo))


def answer_error(views: Views, error: PageError) -> Response:
    """Answers an error: JSON for programs, a page with the words on it for people."""
    said = views.words_of(error)
    if _wants_json():
        body: dict[str, Any] = error.body()  # Any: JSON
        response = jsonify({"request_id": g.get("request_id"), **body, "page": asdict(said)})
    elif request.endpoint in ("post", "post_tab") and (
        isinstance(error, UploadError) or (views.shows_a_form and type(error) is not PageError)
    ):
        response = make_response(views.page([], said))
    else:
        response = make_response(render_template("message.html", title=said.title, advice=said.advice))
    response.status_code = error.status
    response.headers.update(error.headers)
    return response


def _address(name: str) -> str:
    """Returns the address of a model's tab: `/NAME`, or `/?model=NAME` where the page has that path."""
    endpoint = "index" if f"/{name}" in OWN_PATHS else "tab"
    return url_for(endpoint, model=name)


def _typed() -> Mapping[str, str] | None:
    """Returns what a plain form brought; None if it cannot be read."""
    try:
        return request.form if request.method == "POST" else None
    except HTTPException:
        return None


def _wants_json() -> bool:
    if request.path in JSON_PATHS:
        return True
    accepted = request.accept_mimetypes
    return accepted["application/json"] > accepted["text/html"]
