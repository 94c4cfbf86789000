"""Words for visitors: an answer as a sentence, an error as what happened and what to do.

The model's view decides which words a page uses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

DEFAULT_PROBABILITY = 0.5
DEFAULT_MARGIN = 0.15
MAX_QUOTE = 80  # characters of a text that a sentence or a bar names


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
class View:
    """A model's page: its form, its script, and the texts around the answers.

    Its form is in `templates/FORM.html`, and works with `static/SCRIPT.js`.
    """

    name: str
    heading: str  # where the model has no title
    lead: str  # where it has no description
    goes: str  # what happens once the service is back, as the beginning of a sentence
    stays: str  # until then
    privacy: str
    knows: str = ""  # what follows the number of its classes
    unsure: str = ""  # note on an answer with a low score
    candidates: int = 0  # how many it shows at most; 0: the model ranks nothing
    script: str = ""  # where it is not the name
    form: str = ""  # where it is not the script's name
    named_by: str = ""  # field whose text names a request
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What is filled in first: changes of the `FormField` with this name."""

    hidden: tuple[str, ...] = ()  # fields that the page does not offer

    def top_k(self, labels: Sequence[str]) -> int:
        """Returns the number of candidates to ask for; 0 where the model ranks nothing."""
        return min(self.candidates, len(labels) or self.candidates)


def box(label: str, rows: int, **more: Any) -> Mapping[str, Any]:
    """Returns the changes of a field that a view shows with a label of its own, empty at first."""
    return {"label": label, "rows": rows, "value": "", "help": "", **more}


BY_LINE = "Each line is a separate text."
SENT = "is sent to this server and its model. Nothing is stored"
FORM = View(
    "form",
    "Try {name}",
    "Fill in the form and send it to the model.",
    "Requests will be sent",
    "The request stays here",
    "Your request " + SENT,
)
"""View of any model whose requests have a schema."""

TENSORS = replace(
    FORM,
    name="tensors",
    script="form",
    fields={"request": {"rows": 10}},
    lead="This model's inputs and outputs are tensors, which are arrays of numbers. "
    "Write a request in JSON, in the format of the Open Inference Protocol.",
)
WAITING = View("waiting", "{name}", "", "This tab opens automatically", "", "")
"""View of a model that has never been in service."""

PHOTOS = View(
    "photos",
    "What's in this photo?",
    "Upload a photo to identify what's in it.",
    "Photos will be sent",
    "The photo stays here",
    "Your photo " + SENT,
    "classes and always picks one, even when none fits:",
    "The scores are low or close together. The photo may show something outside these classes.",
    5,
)
TEXTS = View(
    "text",
    "What kind of text is this?",
    "Enter a text to classify it.",
    "Texts will be sent",
    "The text stays here",
    "Your text " + SENT,
    "classes and always picks one, even when none fits:",
    "The scores are low or close together. The text may fit none of these classes.",
    10,
    form="live",
    fields={"text": box("Your text", 3, by_line=True, help=BY_LINE)},
)
QUESTIONS = View(
    "question",
    "Ask about a text",
    "Paste a paragraph, ask a question, and see the answer highlighted.",
    "Questions will be sent",
    "The question stays here",
    "What you write " + SENT,
    unsure="The score is low. The answer may be elsewhere in the text, or not in it at all.",
    candidates=5,
    named_by="question",
    fields={"context": box("Text", 7), "question": box("Question", 1)},
)
EMBEDDINGS = View(
    "embedding",
    "How alike are these texts?",
    "Enter several texts to see which of them are close in meaning.",
    "Texts will be sent",
    "The texts stay here",
    "What you write " + SENT,
    script="live",
    fields={"text": box("Texts", 4, kind="lines", by_line=True, help=BY_LINE)},
    hidden=("normalize", "truncate", "truncation_direction"),
)
RANKING = replace(
    EMBEDDINGS,
    name="ranking",
    heading="Which text fits best?",
    lead="Enter a query and several texts, and see them sorted by how well they fit.",
    named_by="query",
    fields={
        "query": box("Query", 1, size_help=""),
        "texts": box("Texts", 4, by_line=True, help=BY_LINE),
    },
    hidden=("truncate", "truncation_direction"),
)
ENTITIES = replace(
    EMBEDDINGS,
    name="entities",
    heading="What is named in this text?",
    lead="Enter a text to see its entities marked, such as names of people and places.",
    stays="The text stays here",
    fields={"text": box("Text", 7)},
    hidden=(),
)
ZERO_SHOT = replace(
    EMBEDDINGS,
    name="zero-shot",
    heading="Which label fits this text?",
    lead="Enter a text and labels of your choice, and see how well each of them fits.",
    unsure="The scores are low or close together. The text may fit none of these labels.",
    stays="The text stays here",
    fields={
        "text": box("Text", 3),
        "candidate_labels": box(
            "Labels", 2, kind="names", required=True, limit=None, help="Separated by commas or lines."
        ),
        "multi_label": box("Several labels may fit", 1, kind="yes"),
    },
    hidden=("text_pair",),
)
SPECIAL = {
    "image-classification": PHOTOS,
    "text-classification": TEXTS,
    "question-answering": QUESTIONS,
    "embedding": EMBEDDINGS,
    "ranking": RANKING,
    "token-classification": ENTITIES,
    "zero-shot-classification": ZERO_SHOT,
}
"""Views that give more than the form: of a task, if its requests have the view's fields."""

TRUNCATED = "The text was too long. The model read only part of it."
NO_ANSWER = "The text does not say."
INDEPENDENT = "classes, of which none, one or several may fit:"
"""Text after the number of classes if several classes may fit at once."""

ERRORS = {
    "no_photo": ("No photo was received.", "Choose, drop or paste one."),
    "invalid_form": ("This cannot be sent yet.", ""),
    "too_many_texts": ("Too many lines at once.", "Send fewer at a time."),
    "too_many_photos": ("Too many photos at once.", "Send fewer at a time."),
    "payload_too_large": ("This photo is too large.", "Choose a smaller one."),
    "image_too_large": ("This photo has too many pixels.", "Choose a smaller one."),
    "unsupported_image": (
        "This image format isn't supported.",
        "Save the photo as JPEG and choose that file.",
    ),
    "unsupported_media_type": ("This file is not an image.", "Choose a JPEG, PNG or WebP file."),
    "unknown_sample": ("This sample does not exist.", "Choose one of the samples on the page."),
    "invalid_image": ("This file is not a readable image.", "Choose a JPEG, PNG or WebP file."),
    "text_too_long": ("This text is too long.", ""),
    "invalid_text": ("This text cannot be read.", ""),
    "invalid_input": ("The model does not accept this input.", ""),
    "invalid_request": ("The request doesn't match the model's input format.", ""),
    "invalid_json": ("This isn't valid JSON.", ""),
    "invalid_tensor": ("The tensors don't match the model's inputs.", ""),
    "overloaded": ("The model is busy.", "Try again in a moment."),
    "unavailable": ("The model is not ready.", "Try again in a moment."),
    "draining": ("The service is restarting.", "Try again in a moment."),
    "unauthorized": (
        "The service does not accept this page's API key.",
        "The site's administrator must set the right key.",
    ),
    "deadline_exceeded": ("The model took too long.", "Try again in a moment."),
    "api_timeout": ("The model took too long.", "Try again in a moment."),
    "api_unreachable": ("The model cannot be reached.", "Try again later."),
    "api_garbage": (
        "The model returned an invalid response.",
        "Try again. If this continues, contact the site's administrator.",
    ),
    "cancelled": ("Cancelled.", "Try again whenever you like."),
    "password_required": ("This page needs a password.", "Reload the page and enter it."),
    "cross_origin": ("This request came from another site.", "Open this page and try again here."),
    "misdirected_request": ("This page has another address.", ""),
    "feedback_off": ("This site does not collect feedback.", "The answer is not affected."),
    "bad_feedback": (
        "This feedback does not match an answer from this page.",
        "Classify the photo again, then send your feedback.",
    ),
    "too_many_requests": ("Too much feedback at once.", "Wait a minute, then continue."),
    "feedback_full": ("No more feedback can be stored.", "Thank you all the same."),
    "not_found": ("Page not found.", "The address may be wrong, or its model is no longer served."),
    "method_not_allowed": (
        "This address does not accept this kind of request.",
        "Go back to the start page.",
    ),
}
"""What visitors read about an error; without advice, the service's own sentence is it."""

REQUEST_TOO_LARGE = ("The request is too large.", "Send less at a time.")
CLIENT_ERROR = ("The request was not accepted.", "")
SERVER_ERROR = (
    "Something went wrong on the server.",
    "If this continues, contact the site's administrator.",
)


def error(code: str, status: int, view: View = PHOTOS, detail: str = "") -> ErrorWords:
    """Returns the words for an error's code, or for its status when the code is unknown.

    `detail` is the service's own sentence.
    """
    title, advice = ERRORS.get(code, SERVER_ERROR if status >= 500 else CLIENT_ERROR)
    if code == "payload_too_large" and view is not PHOTOS:
        title, advice = REQUEST_TOO_LARGE
    return ErrorWords(title, advice or sentence(detail if detail != title else ""))


def not_in_service(state: str, reason: str) -> str:
    """Returns what a page says of a model that has never been in service."""
    if state == "unavailable":
        return f"This model is not available. The service says: {reason}"
    return "This model is still warming up. This tab opens automatically when the model is ready."


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
    top: Sequence[tuple[str, float]],
    thresholds: Thresholds,
    unsure: str = "",
    independent: bool = False,
) -> Verdict:
    """Builds a sentence and bars from (label, probability) pairs, most probable first.

    If the labels are independent, all that are probable enough fit; else only the first one does. Raises
    IndexError if there are none.
    """
    bars = bars_of(top)
    best = top[0][1]
    if independent:
        fitting = [bar for bar, (_, p) in zip(bars, top, strict=True) if p >= thresholds.probability]
        if fitting:
            return Verdict(", ".join(f"{bar.label} {bar.percent}" for bar in fitting), True, bars)
        return Verdict(f"None of these; closest: {bars[0].label} {bars[0].percent}", True, bars)
    margin = best - top[1][1] if len(top) > 1 else 1.0
    if best >= thresholds.probability and margin >= thresholds.margin:
        return Verdict(f"{bars[0].label}, {bars[0].percent}", True, bars)
    closest = ", ".join(f"{bar.label} {bar.percent}" for bar in bars[:2])
    return Verdict(f"Not sure: {closest}", False, bars, unsure)


def verdict_of_spans(top: Sequence[tuple[str, float]], thresholds: Thresholds) -> Verdict:
    """The same for parts of a text that may be the answer; an empty part is no answer."""
    bars = bars_of([(text or NO_ANSWER, score) for text, score in top])
    text, best = bars[0].label, top[0][1]
    if best < thresholds.probability:
        return Verdict(f"Not sure: {text} {bars[0].percent}", False, bars, QUESTIONS.unsure)
    return Verdict(f"{text}, {bars[0].percent}" if top[0][0] else text, True, bars)


def decimal(score: float) -> str:
    """Returns a score with two decimals: "0.87", with a minus sign if negative."""
    return f"{score:z.2f}".replace("-", "\u2212")


def clip(text: str) -> str:
    """Returns the beginning of a text, for a sentence."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_QUOTE else f"{text[: MAX_QUOTE - 1].rstrip()}…"


def bars_of(top: Sequence[tuple[str, float]]) -> tuple[Bar, ...]:
    """Builds the bars of a chart from (label, probability) pairs; a score may be a sum over 1."""
    return tuple(Bar(label, percent(min(p, 1)), round(100 * min(p, 1), 2)) for label, p in top)
