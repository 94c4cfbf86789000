"""The service's own protocol: builds its requests, reads its answers. Does no I/O.

If an answer is not as documented, a reader raises AttributeError, LookupError, OverflowError, TypeError
or ValueError.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from smallplates.client.answers import Answer, result_fields
from smallplates.client.calls import Call, PredictOptions, RequestOptions, of_model, post
from smallplates.client.results import (
    Embeddings,
    Model,
    Prediction,
    QuestionAnswer,
    Rank,
    Ranking,
    Score,
    Span,
)

READY_PATH = "/health/ready"
NOT_READY: tuple[int, ...] = (503,)


def predict(photo: bytes, _: float, options: PredictOptions) -> Call:
    """Builds `POST /predict` of a photo."""
    if options.get("base64"):
        return ask({"image": base64.b64encode(photo).decode("ascii")}, options)
    return post(predict_path(options), photo, "application/octet-stream")


def ask(fields: Mapping[str, object], options: RequestOptions) -> Call:
    """Builds `POST /predict` of a request's fields, as JSON; those that are None are left out."""
    present = {name: value for name, value in fields.items() if value is not None}
    return post(predict_path(options), json.dumps(present).encode())


def predict_path(options: RequestOptions) -> str:
    """Returns the path of a model's requests, with the query."""
    query = f"?top_k={options['top_k']}" if "top_k" in options else ""
    return of_model("/predict", options.get("model")) + query


def model_path(name: str | None) -> str:
    """Returns the path of a model's description."""
    return of_model("/model", name)


def prediction(answer: Answer, top_k: int | None) -> Prediction:
    """Reads the answer to a photo or a text."""
    return prediction_of(answer, answer.json(), top_k)


def prediction_of(answer: Answer, body: Any, top_k: int | None) -> Prediction:  # Any: JSON
    """Checks the body of an answer of any protocol, in the shape of the native one."""
    best = score(body["prediction"], body["probability"])
    top: tuple[Score, ...] = (best,)
    if top_k is not None:
        top = tuple(score(item["label"], item["probability"]) for item in body["top"])
        if top[0] != best:
            raise ValueError("top does not begin with the prediction")
    return Prediction(**vars(best), top=top, **result_fields(answer, body))


def question_answer(answer: Answer, top_k: int | None) -> QuestionAnswer:
    """Reads the answer to a question."""
    body = answer.json()
    best = span(body)
    top = (best,) if top_k is None else tuple(span(item) for item in body["top"])
    return QuestionAnswer(**vars(best), top=top, **result_fields(answer, body))


def span(item: Mapping[str, Any]) -> Span:
    """Checks the types of an answer to a question."""
    text, start, end = (item[name] for name in ("answer", "start", "end"))
    if not (isinstance(text, str) and type(start) is type(end) is int and 0 <= start <= end):
        raise ValueError(f"{text!r}, from {start!r} to {end!r}, is not a part of a text")
    if (score := number(item["score"])) < 0:
        raise ValueError(f"{score!r} is not a score")
    return Span(text, score, start, end)


def embeddings(answer: Answer, count: int) -> Embeddings:
    """Reads the vectors of so many texts."""
    body = answer.json()
    vectors = [[number(value) for value in item["embedding"]] for item in body]
    if len(vectors) != count or len({len(vector) for vector in vectors}) > 1:
        raise ValueError("not a vector of the same length for each text")
    return Embeddings(vectors=vectors, **result_fields(answer, body))


def ranking(answer: Answer, texts: Sequence[str]) -> Ranking:
    """Reads the order of texts."""
    body = answer.json()
    places = range(len(texts))
    ranks = [(places.index(item["index"]), number(item["score"])) for item in body["ranking"]]
    found = tuple(Rank(index, score, texts[index]) for index, score in ranks)
    if not found:
        raise ValueError("no text is ranked")
    return Ranking(ranking=found, **result_fields(answer, body))


def number(value: object) -> float:
    """Checks the type."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def score(label: object, probability: object) -> Score:
    """Checks the types and that the probability is from 0 to 1."""
    if not isinstance(label, str):
        raise TypeError(f"{label!r} is not a label")
    if not 0 <= (share := number(probability)) <= 1:
        raise ValueError(f"{probability!r} is not a probability")
    return Score(label, share)


def model(answer: Answer) -> Model:
    """Reads the description of a model."""
    return model_of(answer.json())


def model_of(body: Mapping[str, Any]) -> Model:  # Any: JSON
    """Returns the model of a description; what it lacks is empty."""
    labels = body.get("labels")
    return Model(
        name=str(body.get("name", "")),
        version=str(body.get("version", "")),
        labels=tuple(map(str, labels)) if isinstance(labels, list) else (),
        body=body,
    )
