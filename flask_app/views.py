"""Routes of the page: read what the browser sent, ask the API, answer in words."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Response, g, jsonify, make_response, render_template, request, url_for
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter

from flask_app import words
from flask_app.answers import Outcome
from flask_app.api_client import ApiClient
from flask_app.asking import Asking
from flask_app.errors import STATUSES, ApiAnswerError, PageError, UploadError
from flask_app.feedback import NONE_OF_THESE, Feedback
from flask_app.photos import Decoder, Photo
from flask_app.samples import sample
from flask_app.service import Service
from flask_app.settings import Settings
from flask_app.uploads import one_upload

JSON_PATHS = ("/classify", "/ask", "/status", "/healthz")
OWN_PATHS = (*JSON_PATHS, "/test", "/feedback")


class ModelName(BaseConverter):
    """Name of a model as a path of the page, where the page has no such path itself."""

    regex = rf"(?!(?:{'|'.join(path[1:] for path in OWN_PATHS)})$)[A-Za-z0-9][A-Za-z0-9._-]*"


@dataclass(frozen=True)
class Card:
    """Request on a page that the server renders, with its outcome or its error."""

    name: str
    outcome: Outcome | None
    error: words.ErrorWords | None
    thumbnail: str | None


class Views:
    """Routes of one application."""

    def __init__(self, settings: Settings, api: ApiClient, service: Service, feedback: Feedback) -> None:
        self.settings = settings
        self.service = service
        self.feedback = feedback
        self._decoder = Decoder()
        self._asking = Asking(settings, api, service, feedback, self._decoder)

    def add_to(self, app: Flask) -> None:
        """Registers the routes."""
        app.add_url_rule("/", view_func=self.index)
        app.add_url_rule("/", view_func=self.post, methods=["POST"])
        app.add_url_rule("/<model:model>", "tab", self.index)
        app.add_url_rule("/<model:model>", "post_tab", self.post, methods=["POST"])
        app.add_url_rule("/classify", view_func=self.classify, methods=["POST"])
        app.add_url_rule("/ask", view_func=self.ask, methods=["POST"])
        app.add_url_rule("/test", view_func=self.test)
        app.add_url_rule("/status", view_func=self.status)
        app.add_url_rule("/healthz", view_func=self.healthz)
        app.add_url_rule("/feedback", view_func=self.save_feedback, methods=["POST"])
        app.add_url_rule("/feedback/undo", view_func=self.undo_feedback, methods=["POST"])

    def index(self, model: str = "") -> str:  # noqa: ARG002 it is in `g`
        """Returns the page without any answer."""
        return self.page([])

    def post(self, model: str = "") -> Response:  # noqa: ARG002
        """Answers a plain form with a full page; raises PageError if nothing in it was answered."""
        cards = []
        failures: list[PageError] = []
        with self._asking.slot():
            for name, content in self._asking.plain_form():
                outcome, said = None, None
                try:
                    outcome = self._asking.outcome(content)
                except PageError as error:  # stays on its card
                    failures.append(error)
                    said = self.words_of(error)
                is_photo = isinstance(content, Photo)
                thumbnail = self._decoder.thumbnail(content.content) if is_photo else None
                cards.append(Card(name, outcome, said, thumbnail))
        if len(failures) < len(cards):
            return make_response(self.page(cards))
        if self.shows_a_form:
            raise failures[0]
        response = make_response(self.page(cards), failures[0].status)
        response.headers.update(failures[0].headers)
        return response

    def classify(self) -> Response:
        """Answers one photo (the body itself, or a form) with the API's JSON and the key `page`."""
        photo = one_upload()
        with self._asking.slot():
            outcome = self._asking.outcome(photo)
        page = {**asdict(outcome.verdict), "feedback_token": outcome.token}
        return json_response({**outcome.answer.body, "page": page}, outcome)

    def ask(self) -> Response:
        """Answers one request of the script: the API's JSON, the words, and the HTML of both."""
        content = self._asking.form()
        with self._asking.slot():
            outcome = self._asking.outcome(content)
        html = render_template("answer.html", outcome=outcome, **self._code())
        verdict = outcome.verdict
        page = {"sentence": verdict.sentence, "sure": verdict.sure, "note": verdict.note, "html": html}
        return json_response({"answer": outcome.answer.body, "page": page}, outcome)

    def test(self) -> str:
        """Asks with a sample and shows the answer as text: tests page, API and model together."""
        example = self._asking.example()
        with self._asking.slot():
            outcome = self._asking.outcome(example)
        shown = sample("soup") if isinstance(example, Photo) else None
        return render_template("test.html", sample=shown, outcome=outcome)

    def status(self) -> Response:
        """Returns the status that the page's script polls, as JSON."""
        status = self.service.status(g.model)
        states = self.service.states()
        models = [
            {"name": name, "state": each.state} for name, each in states.items() if len(states) > 1
        ]
        model = status.model and status.model.status()
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
            raise PageError("bad_feedback", "choose the right label")
        photo = request.files.get("photo")
        self.feedback.save(
            request.form.get("token", ""),
            None if right else corrected,
            self._asking.model().labels,
            photo.read() if photo else None,
            request.remote_addr or "",
        )
        return self._message("Thanks, saved.", undo=request.form.get("token"))

    def undo_feedback(self) -> Response:
        """Undoes feedback that was saved before."""
        self.feedback.undo(request.form.get("token", ""), request.remote_addr or "")
        return self._message("Feedback removed.")

    def page(self, cards: Sequence[Card], problem: words.ErrorWords | None = None) -> str:
        """Renders the whole page; what was typed stays in it."""
        model = self._asking.model()
        states = self.service.states() if model.is_one_of_several else {}
        titles = Counter(state.title or name for name, state in states.items())
        named = {"model": model.name} if model.is_one_of_several else {}
        return render_template(
            "page.html",
            cards=cards,
            problem=problem,
            model=model,
            named=named,
            address=f"{_address(model.name) if named else url_for('index')}#results",
            tabs=[
                (name, state, state.title if titles[state.title] == 1 else name, _address(name))
                for name, state in states.items()
            ],
            said=model.said,
            view=model.view.name,
            typed=_form_texts(),
            samples=model.samples,
            feedback=self.feedback,
            none_of_these=NONE_OF_THESE,
            max_bytes=self.settings.max_upload_bytes,
            max_mb=self.settings.max_upload_mb,
            **self._code(),
        )

    def _code(self) -> dict[str, Any]:
        """Returns what the code that visitors copy depends on, beside the model."""
        settings = self.settings
        api_url = settings.api_url if is_reachable(settings.api_url, request.host) else None
        public = settings.public_api_url or api_url
        return {
            "api_url": None if self._asking.pipeline() else public,  # a photo is not its request
            "keyed": settings.api_key is not None,
            "protocol": settings.api_protocol,
        }

    def words_of(self, error: PageError) -> words.ErrorWords:
        """Returns what happened and what to do, with the page's own size limit in it."""
        said = words.error(error.code, error.status, self._asking.model().view, error.detail)
        if error.code == "payload_too_large" and not isinstance(error, ApiAnswerError):
            limit = self.settings.max_upload_mb
            return words.ErrorWords(said.title, f"The limit is {limit} MB. {said.advice}")
        return said

    @property
    def shows_a_form(self) -> bool:
        """Whether an error is shown above what was typed, so that nothing of it is lost."""
        return self._asking.model().view is not words.PHOTOS

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
        isinstance(error, UploadError) or (views.shows_a_form and is_of_the_form(error))
    ):
        response = make_response(views.page([], said))
    else:
        response = make_response(render_template("message.html", title=said.title, advice=said.advice))
    response.status_code = error.status
    response.headers.update(error.headers)
    return response


def is_of_the_form(error: PageError) -> bool:
    """Returns whether an error is about what was sent, and not about the page or who sent it."""
    others = ("internal_error", "password_required", "misdirected_request")
    return isinstance(error, ApiAnswerError) or (error.code in STATUSES and error.code not in others)


def json_response(body: Mapping[str, Any], outcome: Outcome) -> Response:  # Any: JSON
    """Returns JSON with the headers of the API's answer."""
    response = jsonify(body)
    response.headers.update(outcome.answer.headers)
    return response


def _address(name: str) -> str:
    """Returns the address of a model's tab: `/NAME`, or `/?model=NAME` where the page has that path."""
    endpoint = "index" if f"/{name}" in OWN_PATHS else "tab"
    return url_for(endpoint, model=name)


def is_reachable(address: str, page: str) -> bool:
    """Returns whether a visitor who reaches `page`, a host, may reach another address, too.

    A name without a dot is known only inside a network of containers.
    """
    host = urlsplit(address).hostname or ""
    if is_loopback(host):
        return is_loopback(re.sub(r":\d*$", "", page).strip("[]"))
    return "." in host or ":" in host


def is_loopback(host: str) -> bool:
    """Returns whether a host's name or address is the machine's own."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _form_texts() -> Mapping[str, str] | None:
    """Returns what a plain form brought; None if it cannot be read."""
    try:
        return request.form if request.method == "POST" else None
    except HTTPException:
        return None


def _wants_json() -> bool:
    if request.path in JSON_PATHS:
        return True
    types = request.accept_mimetypes
    return types["application/json"] > types["text/html"]
