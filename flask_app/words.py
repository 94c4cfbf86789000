"""Words for visitors: an answer as a sentence, an error as what happened and what to do."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class ErrorWords:
    """Error in words: its cause, and the visitor's next step."""

    title: str
    advice: str


ERRORS = {
    "no_photo": ("No photo arrived.", "Choose one, drop one, or paste one."),
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
CLIENT_ERROR = ("The photo was not accepted.", "Choose another one.")
SERVER_ERROR = ("Something went wrong on the server.", "Try again in a moment.")


def error(code: str, status: int) -> ErrorWords:
    """Returns the words for an error's code, or for its status when the code is unknown."""
    return ErrorWords(*ERRORS.get(code, SERVER_ERROR if status >= 500 else CLIENT_ERROR))


def percent(probability: float) -> str:
    """Rounds to whole percents, to 0 or 100 only when exact: "<1 %", "41 %", ">99 %"."""
    value = 100 * probability
    if 0 < value < 1:
        return "<1 %"
    if 99 < value < 100:
        return ">99 %"
    return f"{round(value)} %"


def verdict(top: Sequence[tuple[str, float]], thresholds: Thresholds) -> Verdict:
    """Builds a sentence and bars from (label, probability) pairs, most probable first."""
    bars = tuple(Bar(label, percent(p), round(100 * p, 2)) for label, p in top)
    best = top[0][1]
    margin = best - top[1][1] if len(top) > 1 else 1.0
    if best >= thresholds.probability and margin >= thresholds.margin:
        return Verdict(f"{bars[0].label}, {bars[0].percent}", True, bars)
    named = ", ".join(f"{bar.label} {bar.percent}" for bar in bars[:2])
    return Verdict(f"Not sure: {named}", False, bars)
