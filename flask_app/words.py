"""Words for visitors: an answer as a sentence, an error as what happened and what to do.

What a page says depends on its view: `photos`, `text`, `question`, `form` or `tensors`; `waiting` for a
model that has never been in service.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

View = Literal["photos", "text", "question", "form", "tensors", "waiting"]

DEFAULT_PROBABILITY = 0.5
DEFAULT_MARGIN = 0.15


@dataclass(frozen=True)
class Thresholds:
    """Least probability, and least margin over the second class, of an answer that counts as certain."""

    probability: float = DEFAULT_PROBABILITY
    margin: float = DEFAULT_MARGIN


@dataclass(frozen=True)
class Bar:
    """Class in a chart: its name, "41 %", and the bar's width in percent of the full scale."""

    label: str
    percent: str
    width: float


@dataclass(frozen=True)
class Verdict:
    """Answer as a visitor reads it."""

    sentence: str
    sure: bool
    bars: tuple[Bar, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class ErrorWords:
    """Error in words: its cause, and the visitor's next step."""

    title: str
    advice: str


@dataclass(frozen=True)
class ViewWords:
    """What a page of this view says around the answers."""

    heading: str
    """Where the model has no title."""

    lead: str
    """Where it has no description."""

    goes: str
    """What happens once the service is back, as the beginning of a sentence."""

    stays: str
    """Until then."""

    privacy: str
    knows: str = ""
    """What follows the number of its classes."""


REST = "to this server and from there to its {}, is answered, and is forgotten: nothing is stored"
VIEWS: dict[View, ViewWords] = {
    "photos": ViewWords(
        "What is on this photo?",
        "Show a photo, get a name for what is on it.",
        "Photos go in",
        "The photo stays here",
        "A photo goes " + REST.format("classifier"),
        "things, and names one of them for any picture, also where there is none of them on it:",
    ),
    "text": ViewWords(
        "What kind of text is this?",
        "Write a sentence, get a name for what it says.",
        "Texts go in",
        "The text stays here",
        "A text goes " + REST.format("classifier"),
        "classes, and gives one of them to any text, also where none of them fits:",
    ),
    "question": ViewWords(
        "Ask about a text",
        "Paste a paragraph, ask a question, and see where the answer stands.",
        "Questions go in",
        "The question stays here",
        "What you write goes " + REST.format("model"),
    ),
    "form": ViewWords(
        "Try {name}",
        "Fill in what the model takes, and see what it gives.",
        "Requests go in",
        "The request stays here",
        "A request goes " + REST.format("model"),
    ),
    "tensors": ViewWords(
        "Try {name}",
        "This model takes and gives tensors, which are arrays of numbers. It has no form of its own: "
        "send a request of the Open Inference Protocol, in JSON.",
        "Requests go in",
        "The request stays here",
        "A request goes " + REST.format("model"),
    ),
    "waiting": ViewWords(
        "{name}",
        "",
        "This tab opens by itself",
        "",
        "",
    ),
}
UNSURE_PHOTO = "The scores are low or close together. It may be something else, or nothing it knows."
UNSURE_TEXT = "The scores are low or close together. It may be none of these."
UNSURE_SPAN = "The score is low. The answer may stand elsewhere, or nowhere in this text."
TRUNCATED = "The text was too long for the model, which has read only a part of it."
NO_ANSWER = "The text does not say."

ERRORS = {
    "no_photo": ("No photo arrived.", "Choose one, drop one, or paste one."),
    "invalid_form": ("This cannot be sent yet.", ""),
    "too_many_texts": ("Too many lines at once.", "Send fewer in one go."),
    "too_many_photos": ("Too many photos at once.", "Send fewer in one go."),
    "payload_too_large": ("This photo is too large.", "Choose a smaller one."),
    "image_too_large": ("This photo has too many pixels.", "Choose a smaller one."),
    "unsupported_image": (
        "This kind of picture cannot be read here.",
        "Save it as JPEG and choose that file.",
    ),
    "unsupported_media_type": ("This is not a picture.", "Choose a JPEG, PNG or WebP file."),
    "unknown_sample": ("There is no such sample picture.", "Choose one of those shown."),
    "invalid_image": (
        "This file is not a picture that can be read.",
        "Choose a JPEG, PNG or WebP file.",
    ),
    "overloaded": ("The classifier is busy.", "Try again in a moment."),
    "unavailable": ("The model is still loading.", "Try again in a moment."),
    "draining": ("The classifier is restarting.", "Try again in a moment."),
    "unauthorized": (
        "The classifier does not accept this page's key.",
        "Whoever runs the page has to set the right one.",
    ),
    "deadline_exceeded": ("The classifier took too long.", "Try again in a moment."),
    "api_timeout": ("The classifier took too long.", "Try again in a moment."),
    "api_unreachable": ("The classifier cannot be reached.", "Try again when it is back."),
    "api_garbage": (
        "The classifier gave an answer that makes no sense.",
        "Try again; if it stays, tell whoever runs this page.",
    ),
    "cancelled": ("Cancelled.", "Try again whenever you like."),
    "cross_origin": ("Another site sent this.", "Open this page itself and try there."),
    "feedback_off": ("Feedback is not collected here.", "The answer itself is unaffected."),
    "bad_feedback": (
        "This feedback does not fit an answer of this page.",
        "Classify the photo again and then say what it is.",
    ),
    "too_many_requests": ("That was a lot of feedback.", "Wait a minute, then go on."),
    "feedback_full": ("No more feedback can be stored.", "Thank you all the same."),
    "not_found": ("There is nothing at this address.", "Go back to the start page."),
    "method_not_allowed": ("This address does not take that.", "Go back to the start page."),
}
REQUEST_ERRORS = {
    "payload_too_large": ("This is too large.", "Send less at once."),
    "text_too_long": ("This text is too long.", ""),
    "invalid_text": ("This text cannot be read.", ""),
    "invalid_input": ("The model does not take this.", ""),
    "invalid_request": ("This is not what the model takes.", ""),
    "invalid_json": ("This is no JSON.", ""),
    "invalid_tensor": ("These are not the tensors that the model takes.", ""),
    "overloaded": ("The model is busy.", "Try again in a moment."),
    "draining": ("The service is restarting.", "Try again in a moment."),
    "unauthorized": (
        "The service does not accept this page's key.",
        "Whoever runs the page has to set the right one.",
    ),
    "deadline_exceeded": ("The model took too long.", "Try again in a moment."),
    "api_timeout": ("The model took too long.", "Try again in a moment."),
    "api_unreachable": ("The model cannot be reached.", "Try again when it is back."),
    "api_garbage": (
        "The model gave an answer that makes no sense.",
        "Try again; if it stays, tell whoever runs this page.",
    ),
}
"""Errors in other words where no photo was sent; without advice, the service's own sentence is it."""

REQUEST_CLIENT_ERROR = ("This was not accepted.", "")
CLIENT_ERROR = ("The photo was not accepted.", "Choose another one.")
SERVER_ERROR = ("Something went wrong on the server.", "Try again in a moment.")


def error(code: str, status: int, view: View = "photos", detail: str = "") -> ErrorWords:
    """Returns the words for an error's code, or for its status when the code is unknown.

    `detail` is the service's own sentence, which says what is wrong with a text or a form.
    """
    entry = ERRORS.get(code, SERVER_ERROR if status >= 500 else CLIENT_ERROR)
    if view != "photos":
        general = SERVER_ERROR if status >= 500 else REQUEST_CLIENT_ERROR
        entry = REQUEST_ERRORS.get(code) or ERRORS.get(code, general)
    return ErrorWords(entry[0], entry[1] or sentence(detail))


def waiting(state: str, reason: str) -> str:
    """Returns what a page says of a model that has never been in service."""
    if state == "unavailable":
        return f"This model is not available. The service says: {reason}"
    return "This model is still warming up. This tab opens by itself as soon as the model is ready."


def sentence(detail: str) -> str:
    """Returns a detail with a capital letter and a full stop."""
    if not detail:
        return ""
    end = "" if detail.endswith((".", "?", "!")) else "."
    return f"{detail[0].upper()}{detail[1:]}{end}"


def percent(probability: float) -> str:
    """Rounds to whole percents, to 0 or 100 only when exact: "<1 %", "41 %", ">99 %"."""
    value = 100 * probability
    if 0 < value < 1:
        return "<1 %"
    if 99 < value < 100:
        return ">99 %"
    return f"{round(value)} %"


def verdict(
    top: Sequence[tuple[str, float]], thresholds: Thresholds, unsure: str = UNSURE_PHOTO
) -> Verdict:
    """Builds a sentence and bars from (label, probability) pairs, most probable first."""
    bars = bars_of(top)
    best = top[0][1]
    margin = best - top[1][1] if len(top) > 1 else 1.0
    if best >= thresholds.probability and margin >= thresholds.margin:
        return Verdict(f"{bars[0].label}, {bars[0].percent}", True, bars)
    named = ", ".join(f"{bar.label} {bar.percent}" for bar in bars[:2])
    return Verdict(f"Not sure: {named}", False, bars, unsure)


def verdict_of_independent(top: Sequence[tuple[str, float]], thresholds: Thresholds) -> Verdict:
    """The same for classes that do not exclude each other: all that are probable enough."""
    bars = bars_of(top)
    named = [bar for bar, (_, p) in zip(bars, top, strict=True) if p >= thresholds.probability]
    if named:
        return Verdict(", ".join(f"{bar.label} {bar.percent}" for bar in named), True, bars)
    return Verdict(f"None of these: at most {bars[0].label} {bars[0].percent}", True, bars)


def verdict_of_spans(top: Sequence[tuple[str, float]], thresholds: Thresholds) -> Verdict:
    """The same for parts of a text that may be the answer; an empty part is no answer."""
    bars = bars_of([(text or NO_ANSWER, score) for text, score in top])
    text, best = bars[0].label, top[0][1]
    if best < thresholds.probability:
        return Verdict(f"Not sure: {text} {bars[0].percent}", False, bars, UNSURE_SPAN)
    return Verdict(f"{text}, {bars[0].percent}" if top[0][0] else text, True, bars)


def bars_of(top: Sequence[tuple[str, float]]) -> tuple[Bar, ...]:
    """Builds the bars of a chart from (label, probability) pairs; a score may be a sum over 1."""
    return tuple(Bar(label, percent(min(p, 1)), round(100 * min(p, 1), 2)) for label, p in top)
