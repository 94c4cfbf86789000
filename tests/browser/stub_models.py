"""Models other than the classifier of photos, as the stub of the API describes and answers them."""

import base64
import re
from collections.abc import Callable
from typing import Any

from smallplates.models.task_kinds import kind_of
from tests.browser.stub_api import TIMES, Asked, Reply, StubApi, error, ok

HOST = {"backend": "onnx", "device": "cpu", "execution_provider": "-", "precision": "fp32"}
HOST |= {"precision_reason": "", "version": "1", "title": "", "description": ""}


def of_task(name: str, task: str, labels: str = "", **more: Any) -> dict[str, Any]:
    """A model with the fields and the example that the service has for its task."""
    kind = kind_of(task).load()
    limits = {"request_bytes": 16777216, **more.pop("limits")}
    return {
        **HOST,
        **{"name": name, "task": task, "labels": labels.split(), "limits": limits, **more},
        **{"request_schema": kind.request_schema, "answer_schema": {"type": "object"}},
        "example": dict(kind.example),
    }


SHORT = {"text_bytes": 300, "tokens": 512}
SENTIMENT = of_task(
    "sentiment",
    "text-classification",
    "Negative Neutral Positive",
    text={"max_tokens": 512, "pad_token_id": 0, "activation": "softmax"},
    limits=SHORT,
)
READER = of_task("reader", "question-answering", limits={"text_bytes": 20000})
PROMPTS = {"pooling": "mean", "normalize": True, "prompts": {"query": "query: "}}
MEANINGS = of_task("meanings", "embedding", embedding=PROMPTS, limits=SHORT)
SEARCH = of_task("search", "ranking", limits={**SHORT, "texts": 256})
TAGGER = of_task("tagger", "token-classification", "O B-PER I-PER B-LOC I-LOC", limits=SHORT)
INTENTS = of_task(
    "intents",
    "zero-shot-classification",
    "entailment neutral contradiction",
    limits={"text_bytes": 9000, "tokens": 512},
)

FLOWERS: dict[str, Any] = {
    **HOST,
    "name": "flowers",
    "task": "flowers:Flowers",
    "labels": [],
    "description": "Names a flower by its measures.",
    "request_schema": {
        "type": "object",
        "$defs": {"Season": {"type": "string", "enum": ["spring", "summer"], "title": "Season"}},
        "properties": {
            "name": {"type": "string", "maxLength": 10, "title": "Name"},
            "features": {"type": "array", "items": {"type": "number"}, "title": "Features"},
            "petals": {"type": "integer", "minimum": 1, "maximum": 99, "title": "Petals"},
            "season": {"$ref": "#/$defs/Season", "default": "summer"},
            "wild": {"type": "boolean", "default": False, "title": "Wild"},
            "notes": {
                "anyOf": [{"type": "string"}, {"type": "null"}],
                "default": None,
                "title": "Notes",
                "description": "What else you saw.",
            },
            "photo": {"type": "string", "format": "base64", "title": "Photo"},
            "place": {"type": "object", "properties": {}, "title": "Place", "default": {"lat": 1}},
        },
        "required": ["name", "features", "petals", "photo"],
    },
    "answer_schema": {
        "type": "object",
        "properties": {
            "label": {"type": "string", "title": "Label"},
            "probability": {"type": "number", "title": "Probability"},
            "picture": {"type": "string", "format": "base64", "title": "Picture"},
        },
    },
    "example": {"name": "rose", "features": [5.1, 3.5], "petals": 5, "photo": "eHg="},
    "limits": {"request_bytes": 1000000},
}

GRAPH: dict[str, Any] = {
    **HOST,
    "name": "sums",
    "task": "tensor",
    "labels": [],
    "request_schema": None,
    "answer_schema": None,
    "example": None,
    "limits": {"request_bytes": 16777216},
}
METADATA = {
    "name": "sums",
    "inputs": [{"name": "numbers", "datatype": "FP32", "shape": [-1, 3]}],
    "outputs": [{"name": "sum", "datatype": "FP32", "shape": [-1, 1]}],
}
PIXEL = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15"
    b"\xc4\x89\x00\x00\x00\rIDATx\x9cc\xf8\xdf\x9b\xfa\x1f\x00\x07\x1f\x02\xc7\x93\xc5~\x1e\x00\x00"
    b"\x00\x00IEND\xaeB`\x82"
).decode()
SEEN = {
    "label": "Rosa <rugosa>",
    "probability": 0.875,
    "picture": PIXEL,
    "others": [{"label": "Rosa canina", "probability": 0.1}, {"label": "Rubus", "probability": 0.02}],
}


def serve(stub: StubApi, model: dict[str, Any]) -> None:
    """Puts one of these models into the stub's service."""
    stub.model = dict(model)
    stub.metadata = METADATA if model["task"] == "tensor" else None
    stub.usual = ANSWERS[model["task"]]


def serve_several(stub: StubApi, *models: dict[str, Any]) -> dict[str, str]:
    """Puts several models into the stub's service, the first as the default.

    Returns their states by name, which the test may change. One that is not ready is not described.
    """
    by_name = {model["name"]: model for model in models}
    states = dict.fromkeys(by_name, "ready")

    def describe(path: str) -> Any:  # JSON, or a reply
        name = path.removeprefix("/model").removeprefix("/") or models[0]["name"]
        if name not in by_name:
            return error(404, "not_found")
        if states[name] not in ("ready", "asleep"):
            return error(503, "unavailable")
        rows = [
            {
                "name": each,
                "title": by_name[each]["title"],
                "state": state,
                "reason": "" if state == "ready" else f"{each} <{state}>",
            }
            for each, state in states.items()
        ]
        return by_name[name] if path != "/model" else {**by_name[name], "models": rows}

    def answer(asked: Asked) -> Reply:
        name = re.split("[/?]", asked.path)[3 if asked.path.startswith("/v2/") else 2]
        if states[name] not in ("ready", "asleep"):
            return error(503, "unavailable")
        states[name] = "ready"
        return ANSWERS[by_name[name]["task"]](asked)

    stub.model, stub.usual, stub.metadata = describe, answer, METADATA
    return states


def feels(asked: Asked) -> Reply:
    """Finds wonderful texts positive, late and stale ones negative, and is not sure of others."""
    text = asked.body["text"]
    scores = [("Neutral", 0.44), ("Positive", 0.36), ("Negative", 0.2)]
    if "wonderful" in text:
        scores = [("Positive", 0.974), ("Neutral", 0.02), ("Negative", 0.006)]
    if "late" in text or "stale" in text:
        scores = [("Negative", 0.91), ("Neutral", 0.07), ("Positive", 0.02)]
    top = [{"label": label, "probability": p} for label, p in scores]
    body = {"prediction": scores[0][0], "probability": scores[0][1], "top": top}
    return Reply(200, body, {"Server-Timing": TIMES})


def reads(asked: Asked) -> Reply:
    """Finds three parts of the text: the first name of two words, its first word, and a number.

    Offsets are code points. A question for nothing gets no answer, one that doubts a low score.
    """
    context, question = asked.body["context"], asked.body["question"]
    names = re.findall(r"[A-Z]\w+ [A-Z]\w+", context) or re.findall(r"\w+", context)
    years = re.findall(r"\d+|\w+ hours", context) or names
    spans = [(names[0], 0.31 if "doubt" in question else 0.87)]
    spans += [(names[0].split()[0], 0.06), (years[0], 0.02)]
    top = [
        {"answer": text, "score": score, "start": (at := context.index(text)), "end": at + len(text)}
        for text, score in spans
    ]
    if "nothing" in question:
        top = [{"answer": "", "score": 0.93, "start": 0, "end": 0}]
    return Reply(200, {**top[0], "top": top}, {"Server-Timing": TIMES})


def sees(asked: Asked) -> Reply:
    return Reply(200, {**SEEN, "petals": asked.body["petals"]}, {"Server-Timing": TIMES})


def means(asked: Asked) -> Reply:
    """Returns a vector for each text: how often it has each letter, so that like words are alike."""
    text = asked.body["text"]
    texts = [text] if isinstance(text, str) else text
    letters = "abcdefghijklmnopqrstuvwxyz"[: asked.body.get("dimensions")]
    vectors = [
        {"embedding": [float(each.lower().count(letter)) for letter in letters]} for each in texts
    ]
    return Reply(200, vectors[0] if isinstance(text, str) else vectors, {"Server-Timing": TIMES})


def sorts(asked: Asked) -> Reply:
    """Sorts texts by how many words they share with the query."""
    words = set(asked.body["query"].lower().strip("?").split())
    shares = [len(words & set(text.lower().split())) / len(words) for text in asked.body["texts"]]
    order = sorted(range(len(shares)), key=lambda index: -shares[index])
    raw = asked.body.get("raw_scores")
    ranking = [
        {"index": index, "score": 8 * shares[index] - 4 if raw else shares[index]} for index in order
    ]
    return Reply(200, {"ranking": ranking}, {"Server-Timing": TIMES})


def tags(asked: Asked) -> Reply:
    """Finds words in capitals: persons, and places after "in". Offsets are code points."""
    text, joined = asked.body["text"], asked.body["aggregation_strategy"] != "none"
    entities = [
        {
            "entity_group" if joined else "entity": kind if joined else f"B-{kind}",
            **{"score": 0.984, "word": word[1].lower(), "start": word.start(1), "end": word.end(1)},
        }
        for word in re.finditer(r"\b([A-Z]\w+)", text)
        for kind in ["LOC" if text[: word.start()].endswith("in ") else "PER"]
    ]
    return Reply(200, {"entities": entities}, {"Server-Timing": TIMES})


def fits(asked: Asked) -> Reply:
    """Finds that labels of fewer letters fit better."""
    labels, several = asked.body["candidate_labels"], asked.body.get("multi_label")
    labels = sorted(labels.split(", ") if isinstance(labels, str) else labels, key=len)
    shares = [0.5**place for place in range(len(labels))]
    scores = [share if several or len(labels) == 1 else share / sum(shares) for share in shares]
    body = {"sequence": asked.body["text"], "labels": labels, "scores": scores}
    return Reply(200, body, {"Server-Timing": TIMES})


def adds(asked: Asked) -> Reply:
    (tensor,) = asked.body["inputs"]
    output = {"name": "sum", "datatype": "FP32", "shape": [1, 1], "data": [sum(tensor["data"])]}
    return Reply(200, {"model_name": "sums", "model_version": "1", "outputs": [output]})


ANSWERS: dict[str, Callable[[Asked], Reply]] = {
    "image-classification": lambda _: ok(),
    "text-classification": feels,
    "question-answering": reads,
    "embedding": means,
    "ranking": sorts,
    "token-classification": tags,
    "zero-shot-classification": fits,
    "flowers:Flowers": sees,
    "tensor": adds,
}
