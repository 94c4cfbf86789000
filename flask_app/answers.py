"""Turns an answer into what the page shows: a sentence, bars, a marked text or a table."""

import base64
import json
import math
import pprint
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

from flask_app import words
from flask_app.api_client import Answer
from flask_app.errors import ApiError
from flask_app.forms import label_of, pretty, resolve
from flask_app.service import ModelInfo
from flask_app.similarity import Similarity, similarity

LONGEST_HEADLINE = 60
SHOWN_NUMBERS = 5  # of a vector
TINTS = 12  # colours of entities in page.css
MAX_CODE = 4000  # characters of a request that is shown as code
PICTURES = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"RIFF": "image/webp",
    b"GIF8": "image/gif",
}


@dataclass(frozen=True)
class Piece:
    """Part of a text, and as what it is marked, if at all."""

    text: str
    kind: str = ""  # `best` or `other`, of candidates, or the tint of an entity's label
    label: str = ""  # of an entity
    percent: str = ""


@dataclass(frozen=True)
class Attachment:
    """Bytes of an answer: a picture that browsers show, or a file."""

    url: str
    size: int
    is_picture: bool


@dataclass(frozen=True)
class Outcome:
    """Answer to one request, as the page shows it."""

    model: ModelInfo
    request: Any  # JSON
    answer: Answer
    verdict: words.Verdict
    pieces: tuple[Piece, ...] = ()
    token: str | None = None  # that feedback about a photo needs
    similarity: Similarity | None = None  # of several texts

    @cached_property
    def table(self) -> Any:
        """The answer's JSON with `Attachment` in the place of base64."""
        schema = resolve(self.model.answer_schema, self.model.answer_schema)
        properties = schema.get("properties", {})
        if not isinstance(self.answer.body, dict):
            return attachment_of(self.answer.body, schema)
        return {
            label_of(name, properties.get(name, {})): attachment_of(value, properties.get(name, {}))
            for name, value in self.answer.body.items()
        }

    @property
    def legend(self) -> list[tuple[tuple[str, str], int]]:
        """The tint and the name of each entity's label, and how often it occurs."""
        return Counter((piece.kind, piece.label) for piece in self.pieces if piece.kind).most_common()

    @property
    def json(self) -> str:
        """The answer as it came, with the first numbers of each vector."""
        if self.model.view is not words.EMBEDDINGS:
            return pretty(self.answer.body)
        short = [
            {**body, "embedding": [*body["embedding"][:SHOWN_NUMBERS], "..."]}
            for body in objects(self.answer.body)
        ]
        return pretty(short if isinstance(self.answer.body, list) else short[0])

    @cached_property
    def shell_request(self) -> str:
        """The request as an argument of curl; the name of a file where it is long."""
        text = json.dumps(self.request, ensure_ascii=False)
        return shlex.quote(text) if len(text) <= MAX_CODE else "@request.json"

    @cached_property
    def python_request(self) -> str:
        """The request as an expression in Python."""
        text = pprint.pformat(self.request, width=80, sort_dicts=False)
        if len(text) > MAX_CODE:
            return 'json.loads(Path("request.json").read_text())'
        return text.replace("\n", "\n         ")


def outcome_of(model: ModelInfo, request: Any, answer: Answer) -> Outcome:  # Any: JSON
    """Returns what the page shows. Raises ApiError when the answer is not as documented."""
    read = READERS.get(model.view.name)
    if read is None:
        sentence = headline(answer.body) if model.view is words.FORM else "The answer"
        return Outcome(model, request, answer, words.Verdict(sentence, True))
    try:
        return read(model, request, answer)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise ApiError("api_garbage", "the answer has an unknown format") from error


def classes(model: ModelInfo, request: Any, answer: Answer) -> Outcome:  # Any: JSON
    """Reads the classes of a photo or a text. Raises KeyError, TypeError or ValueError."""
    top = ranking(answer.body, "label", "probability")
    verdict = words.verdict(top, model.thresholds, model.view.unsure, model.independent)
    return Outcome(model, request, answer, cut(verdict, answer))


def spans(model: ModelInfo, request: Any, answer: Answer) -> Outcome:  # Any: JSON
    """Reads the answers to a question. Raises KeyError, TypeError or ValueError."""
    verdict = words.verdict_of_spans(ranking(answer.body, "answer", "score"), model.thresholds)
    marks = pieces(request["context"], candidates(answer.body))
    return Outcome(model, request, answer, verdict, marks)


def entities(model: ModelInfo, request: Any, answer: Answer) -> Outcome:  # Any: JSON
    """Marks the entities of a text. Raises LookupError, TypeError or ValueError."""
    marks = mark(request["text"], answer.body["entities"], model.labels)
    count = sum(bool(piece.kind) for piece in marks)
    sentence = f"{count:,} {'entity' if count == 1 else 'entities'}" if count else "No entities found"
    return Outcome(model, request, answer, cut(words.Verdict(sentence, True), answer), marks)


def scored_labels(model: ModelInfo, request: Any, answer: Answer) -> Outcome:  # Any: JSON
    """Reads how well a request's labels fit. Raises LookupError, TypeError or ValueError."""
    scores = map(float, answer.body["scores"])
    top = [*zip(map(str, answer.body["labels"]), scores, strict=True)]
    independent = request.get("multi_label") or len(top) == 1
    verdict = words.verdict(top, model.thresholds, model.view.unsure, bool(independent))
    return Outcome(model, request, answer, cut(verdict, answer))


def vectors(model: ModelInfo, request: Any, answer: Answer) -> Outcome:  # Any: JSON
    """Compares the vectors of texts. Raises LookupError, TypeError or ValueError."""
    found = similarity(request["text"], [body["embedding"] for body in objects(answer.body)])
    verdict = words.Verdict(found.sentence, True, found.bars, found.note)
    return Outcome(model, request, answer, cut(verdict, answer), similarity=found)


def ranks(model: ModelInfo, request: Any, answer: Answer) -> Outcome:  # Any: JSON
    """Reads the scores of texts, best first. Raises LookupError, TypeError or ValueError."""
    ranking = [(int(rank["index"]), float(rank["score"])) for rank in answer.body["ranking"]]
    if not all(index >= 0 and math.isfinite(score) for index, score in ranking):
        raise ValueError("neither a place nor a score")
    bars = []
    is_raw = request.get("raw_scores") or not all(0 <= score <= 1 for _, score in ranking)
    for index, score in ranking:
        share = (1 + math.tanh(score / 2)) / 2 if is_raw else score
        width = round(100 * min(max(share, 0), 1), 2)
        bars.append(words.Bar(request["texts"][index], words.decimal(score), width))
    sentence = f"Text {ranking[0][0] + 1} fits best: {bars[0].percent}"
    return Outcome(model, request, answer, cut(words.Verdict(sentence, True, tuple(bars)), answer))


def cut(verdict: words.Verdict, answer: Answer) -> words.Verdict:
    """Returns a verdict that says so where the model has not read the whole of a text."""
    if "X-Input-Truncated" not in answer.headers:
        return verdict
    return replace(verdict, note=f"{verdict.note} {words.TRUNCATED}".strip())


def objects(body: Any) -> Sequence[Mapping[str, Any]]:  # Any: JSON
    """Returns the answers to the texts of a request, which may be a list or a single one."""
    return body if isinstance(body, list) else [body]


READERS: dict[str, Callable[[ModelInfo, Any, Answer], Outcome]] = {
    "photos": classes,
    "text": classes,
    "question": spans,
    "embedding": vectors,
    "ranking": ranks,
    "entities": entities,
    "zero-shot": scored_labels,
}
"""View -> what reads its answers; all others are shown as they are."""


def headline(body: Any) -> str:  # Any: JSON
    """Returns the first field of an answer, such as "Distance: 3.8", if that is short and plain."""
    if isinstance(body, dict) and body:
        name, value = next(iter(body.items()))
        text = f"{label_of(name, {})}: {value}"
        if isinstance(value, str | int | float) and len(text) <= LONGEST_HEADLINE:
            return text
    return "The answer"


def candidates(body: Any) -> Sequence[Mapping[str, Any]]:  # Any: JSON
    """Returns the candidates, best first; the answer itself where there is no list of them.

    Raises TypeError.
    """
    if not isinstance(body, dict):
        raise TypeError("no object")
    return body.get("top") or [{**body, "label": body.get("prediction")}]


def ranking(body: Any, name: str, score: str) -> list[tuple[str, float]]:  # Any: JSON
    """Returns names and scores of the candidates. Raises KeyError, TypeError or ValueError."""
    return [(str(candidate[name]), float(candidate[score])) for candidate in candidates(body)]


def pieces(text: str, answers: Sequence[Mapping[str, Any]]) -> tuple[Piece, ...]:  # Any: JSON
    """Cuts a text where candidates begin and end; the first one is the best.

    Offsets are code points, the end is exclusive. Raises KeyError, TypeError or ValueError.
    """
    spans = [(int(answer["start"]), int(answer["end"])) for answer in answers]
    if any(not 0 <= start <= end <= len(text) for start, end in spans):
        raise ValueError("a span outside the text")
    cuts = sorted({0, len(text), *(place for span in spans for place in span)})
    parts = [Piece(text[start:end], kind_of(start, spans)) for start, end in pairwise(cuts)]
    groups = groupby(parts, lambda part: part.kind)
    return tuple(Piece("".join(part.text for part in group), kind) for kind, group in groups)


def kind_of(place: int, spans: Sequence[tuple[int, int]]) -> str:
    """Returns of which candidate a place is part."""
    inside = [start <= place < end for start, end in spans]
    if inside[0]:
        return "best"
    return "other" if any(inside) else ""


def mark(
    text: str,
    entities: Sequence[Mapping[str, Any]],  # Any: JSON
    labels: Sequence[str],
) -> tuple[Piece, ...]:
    """Cuts a text where entities begin and end; of those that overlap, the first one is marked.

    Offsets are code points, the end is exclusive. Each of `labels`, which are the model's, has a tint;
    `B-PER` and `PER` have the same. Raises KeyError, TypeError or ValueError.
    """
    names = [*dict.fromkeys(map(type_of, labels))]
    pieces, place = [], 0
    for entity in sorted(entities, key=lambda entity: int(entity["start"])):
        start, end = max(place, int(entity["start"])), int(entity["end"])
        if end > len(text):
            raise ValueError("an entity outside the text")
        if start >= end:
            continue
        label = str(entity.get("entity_group") or entity["entity"])
        name = label if label in names else type_of(label)
        tint = names.index(name) if name in names else len(names)
        pieces += [Piece(text[place:start])] if place < start else []
        percent = words.percent(float(entity["score"]))
        pieces.append(Piece(text[start:end], f"tint-{tint % TINTS}", label, percent))
        place = end
    return (*pieces, Piece(text[place:]))


def type_of(label: str) -> str:
    """Returns a token's label without the mark of its place in an entity, such as `B-`."""
    return label.split("-", 1)[-1]


def attachment_of(value: Any, schema: Mapping[str, Any]) -> Any:  # Any: JSON
    """Returns an `Attachment` for base64, everything else as it is."""
    if not isinstance(value, str) or "base64" not in (
        schema.get("contentEncoding"),
        schema.get("format"),
    ):
        return value
    try:
        content = base64.b64decode(value, validate=True)
    except ValueError:
        return value
    kind = next((kind for head, kind in PICTURES.items() if content.startswith(head)), "")
    url = f"data:{kind or 'application/octet-stream'};base64,{value}"
    return Attachment(url, len(content), bool(kind))
