"""Every task over every protocol: what is answered, and what is refused.

`tests/golden` has the usual requests of texts, questions and pictures, byte for byte. Here is the rest,
and what Triton's clients, our client and the command make of it.
"""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from smallplates.cli import task_check as check
from smallplates.cli.ask import app
from smallplates.client import Client, ServingClientError
from smallplates.client.tcp import TcpClient
from smallplates.models.tensors import Array
from tests import exports, pictures, servers
from tests.command_line import run
from tests.e2e.services import ask, check_one_sentence, ended
from tests.e2e.tasks import MODELS, PYTHON, TEXTS, TOKENS, Service

TEXT, READER, OWN = "/predict/sentiment", "/predict/reader", "/predict/own"
TAGGER, IMPLIED = "/predict/tagger", "/predict/implied"
SIMPLE = {"aggregation_strategy": "simple"}
TABLE = {"entity_group": "PLACE", "word": "table", "start": 2, "end": 7}
ANY = {"hypothesis_template": "{}", "candidate_labels": ["awful", "warm"]}
QUESTION, CONTEXT, START, END = "what was cold", "Été \U0001f600: the warm soup", 11, 20
ASKED = {"question": QUESTION, "context": CONTEXT}
ROW = {"QUESTION": QUESTION, "CONTEXT": CONTEXT, "ALLOW_NO_ANSWER": True}
SPAN = {"answer": "warm soup", "start": START, "end": END}
LONG = "bread " * 5000
VECTORS, RANKER = "/predict/vectors", "/predict/ranker"
PAIRS: dict[str, Any] = {"query": "bread", "texts": ["awful", "soup", "wonderful", "awful"]}
TOO_MANY = 10_000
COUNTER, NUMBERS = "/predict/counter", "/predict/numbers"
SENTENCES = ("warm", "the soup was wonderful and warm", "the bread on the table")
COUNTS = [len(exports.word_piece().encode(text).ids) for text in SENTENCES]
EXACT = 16777217 + 2**-20  # needs more than 32 bits
BEYOND = (2**63, -(2**63) - 1, 2**64, 2**70, 10**300)


def vector(text: str, dimensions: int = 4, length: float | None = 1) -> Any:
    """The vector of a text; `length` None keeps its own."""
    ids = exports.word_piece().encode(text).ids
    states = exports.states(exports.word_piece())[ids] * np.arange(1, len(ids) + 1)[:, None]
    mean = states.mean(0)[:dimensions]
    scaled = mean if length is None else mean / np.linalg.norm(mean) * length
    return pytest.approx(scaled.tolist(), abs=1e-4)


def v2(**inputs: tuple[str, list[int], Any]) -> dict[str, Any]:
    """A body of the Open Inference Protocol: datatype, shape and data of each input."""
    tensors = [
        {"name": name, "datatype": datatype, "shape": shape, "data": data}
        for name, (datatype, shape, data) in inputs.items()
    ]
    return {"inputs": tensors}


ANSWERS: list[tuple[str, Any, Any]] = [
    (f"{TEXT}?top_k=3", {"text": "awful"}, {"top": [{"label": label} for label in exports.LABELS]}),
    (TEXT, {"text": ["warm"]}, [{"prediction": "POSITIVE"}]),
    (TEXT, {"text": "warm", "text_pair": None}, {"prediction": "POSITIVE"}),
    (
        f"{TEXT}?top_k=2",
        {"text": ["warm", "warm"], "text_pair": ["awful", "wonderful"]},
        [{"prediction": "NEGATIVE", "top": [{}, {}]}, {"prediction": "POSITIVE"}],
    ),
    (TEXT, "Ein warm é \U0001f600".encode(), {"prediction": "POSITIVE"}),
    (READER, {**ASKED, "allow_no_answer": None}, SPAN),
    (READER, {**ASKED, "context": "a table", "allow_no_answer": True}, {"answer": "", "end": 0}),
    (f"{READER}?top_k=20", {**ASKED, "context": "a" * 200_000 + " warm soup"}, {"start": 200_001}),
    (READER, {**ASKED, "context": "bread " * 20 + "warm soup and"}, {"start": 120}),
    (READER, {**ASKED, "context": "bread " * 250 + "warm soup and"}, {"start": 1500}),
    (VECTORS, {"text": "warm soup"}, {"embedding": vector("warm soup")}),
    (VECTORS, b"warm soup", {"embedding": vector("warm soup")}),
    (
        VECTORS,
        {"text": ["warm", "soup", "warm"] * 20, "dimensions": 3, "normalize": False},
        [{"embedding": vector(text, 3, None)} for text in ("warm", "soup", "warm") * 20],
    ),
    (
        VECTORS,
        {"text": LONG, "truncate": True, "prompt_name": None},
        {"embedding": vector("bread " * 62)},
    ),
    ("/predictions/vectors", b"warm", {"embedding": vector("warm")}),
    (
        "/v1/models/vectors:predict",
        {"inputs": ["warm", "soup"]},
        {"outputs": [vector("warm"), vector("soup")]},
    ),
    (RANKER, PAIRS, {"ranking": [{"index": index} for index in (2, 1, 0, 3)]}),
    (f"{RANKER}?top_k=2", PAIRS, {"ranking": [{"index": 2}, {"index": 1}]}),
    (
        RANKER,
        {**PAIRS, "texts": ["soup"] * 1000, "raw_scores": True},
        {"ranking": [{"index": index, "score": pytest.approx(0, abs=1e-6)} for index in range(1000)]},
    ),
    (TAGGER, {"text": "\U0001f600 table", **SIMPLE}, {"entities": [TABLE]}),
    (TAGGER, {"text": ["a", "a table"], **SIMPLE}, [{"entities": []}, {"entities": [TABLE]}]),
    (TAGGER, b"a table", {"entities": [{"entity": "PLACE", "index": 2}]}),
    (f"{TAGGER}?top_k=1", {"text": "a table", "stride": None}, {"entities": [{"word": "table"}]}),
    ("/predictions/tagger", {"text": "a table", **SIMPLE}, {"entities": [TABLE]}),
    (
        "/v1/models/tagger:predict",
        {"instances": [{"TEXT": "a table", "AGGREGATION_STRATEGY": "max"}]},
        {"predictions": [[TABLE]]},
    ),
    (IMPLIED, {"text": "soup", **ANY}, {"sequence": "soup", "labels": ["warm", "awful"]}),
    (f"{IMPLIED}?top_k=1", {"text": "soup", **ANY}, {"labels": ["warm"]}),
    (
        IMPLIED,
        {"text": ["soup", "soup"], **ANY, "candidate_labels": "awful, warm, table"},
        [{"labels": ["warm", "table", "awful"]}] * 2,
    ),
    (IMPLIED, {"text": "soup", "text_pair": "warm"}, {"prediction": "Entailment"}),
    (f"{IMPLIED}?top_k=3", {"text": ["warm"]}, [{"prediction": "Entailment", "top": [{}, {}, {}]}]),
    (IMPLIED, b"warm", {"prediction": "Entailment"}),
    (
        "/v1/models/implied:predict",
        {"instances": [{"TEXT": "soup", "CANDIDATE_LABELS": "awful,warm", "MULTI_LABEL": True}]},
        {"predictions": [{"LABEL": "warm"}]},
    ),
    (
        "/v1/models/sentiment:predict",
        b'\xef\xbb\xbf{"instances": ["warm"]}',
        {"predictions": [{"LABEL": "POSITIVE"}]},
    ),
    (COUNTER, {"text": [*SENTENCES]}, [{"tokens": count} for count in COUNTS]),
    (COUNTER, SENTENCES[1].encode(), {"tokens": COUNTS[1]}),
    ("/predictions/counter", SENTENCES[1].encode(), {"tokens": COUNTS[1]}),
    ("/v1/models/counter:predict", {"instances": [*SENTENCES]}, {"predictions": COUNTS}),
    *(
        (
            f"/{path}/numbers",
            {"count": count, "counts": [count]},
            {"exact": 0.0, "point": [], "count": count, "counts": [count]},
        )
        for path in ("predict", "predictions")
        for count in BEYOND
    ),
    (NUMBERS, {"other": "1e999 " + "9" * 400, "count": 1}, {"count": 1}),
    (
        "/v1/models/numbers:predict",
        {"instances": [{"EXACT": EXACT}]},
        {"predictions": [{"EXACT": EXACT}]},
    ),
    (
        "/v1/models/squares:predict",
        {"instances": [{"NUMBER": 2**40}]},
        {"predictions": [{"SQUARE": 2**80, "ALL": [2**80]}]},
    ),
    (OWN, {"number": 7, "length": 3}, {"number": 7, "text": "1 cpuxxx"}),
    ("/predictions/own", {"number": 3}, {"number": 3, "text": "1 cpu"}),
    (
        "/v1/models/sentiment:predict",
        {"instances": [{"TEXT": "awful, [1, 2, 3]"}, {"TEXT": {"b64": "d2FybQ=="}}]},
        {"predictions": [{"LABEL": "NEGATIVE"}, {"LABEL": "POSITIVE"}]},
    ),
    (
        "/v1/models/sentiment:predict",
        {"inputs": ["warm", "awful"]},
        {"outputs": {"LABEL": ["POSITIVE", "NEGATIVE"]}},
    ),
    (
        "/v1/models/reader:predict",
        {"instances": [ROW, {**ROW, "CONTEXT": "a table"}]},
        {"predictions": [{"ANSWER": "warm soup", "START": START, "END": END}, {"ANSWER": ""}]},
    ),
    (
        "/v1/models/reader:predict",
        {"inputs": {"QUESTION": [QUESTION], "CONTEXT": [CONTEXT]}},
        {"outputs": {"ANSWER": ["warm soup"]}},
    ),
    (
        "/v1/models/own:predict",
        {"instances": [{"NUMBER": 1}, {"NUMBER": 2}]},
        {"predictions": [{"NUMBER": 1, "TEXT": "1 cpu"}, {"NUMBER": 2, "TEXT": "1 cpu"}]},
    ),
    (
        "/v1/models/own:predict",
        {"inputs": {"NUMBER": [1, 2], "PADDING": ["a", "b"]}},
        {"outputs": {"NUMBER": [1, 2], "TEXT": ["1 cpu", "1 cpu"]}},
    ),
    (
        "/v1/models/sums:predict",
        {"instances": [{"a": [1, 2], "b": [3, 1]}, {"a": [0.5, 0], "b": [0, 0]}]},
        {
            "predictions": [
                {"sum": [4, 3], "more": [False, True]},
                {"sum": [0.5, 0], "more": [True, False]},
            ]
        },
    ),
]
"""Path, body, and what the answer has in these places."""


def has(answer: Any, expected: Any) -> bool:
    """Returns whether JSON has these values, whatever else its objects have."""
    if isinstance(expected, dict):
        return all(name in answer and has(answer[name], value) for name, value in expected.items())
    if isinstance(expected, list):
        return len(answer) == len(expected) and all(map(has, answer, expected))
    return bool(answer == expected)


@pytest.mark.parametrize(("path", "body", "expected"), ANSWERS, ids=range(len(ANSWERS)))
def test_what_is_answered(tasks: Service, path: str, body: Any, expected: Any) -> None:
    answer = tasks.post(path, body)
    assert answer.status_code == 200, answer.text
    assert has(answer.json(), expected), answer.text


TEXT_PLAIN, JSON = "text/plain", "application/json"
REFUSED: list[tuple[str, Any, str | None, int, str]] = [
    (TEXT, b"", TEXT_PLAIN, 400, "invalid_text"),
    (TEXT, b" \n", TEXT_PLAIN, 400, "invalid_text"),
    (TEXT, b"warm \xff", TEXT_PLAIN, 400, "invalid_text"),
    (TEXT, b"\xed\xa0\x80", TEXT_PLAIN, 400, "invalid_text"),
    (TEXT, b"warm " * 10_000, TEXT_PLAIN, 413, "text_too_long"),
    (TEXT, b"a" * 1_000_000, TEXT_PLAIN, 413, "text_too_long"),
    (TEXT, b"warm", "text/html", 415, "unsupported_media_type"),
    (TEXT, b"warm", "image/jpeg", 415, "unsupported_media_type"),
    *(
        (TEXT, body, JSON, 422, "invalid_request")
        for body in (
            b"{}",
            b"[]",
            b'{"text": []}',
            b'{"text": ["a", 1]}',
            b'{"text": [["a"]]}',
            b'{"text": ["a"], "text_pair": "b"}',
            b'{"text": ["a", "b"], "text_pair": ["b"]}',
            b'{"text": [%s"a"]}' % (b'"a",' * 10_000),
            b'{"text": [%s"a"]}' % (b'"a",' * 1_000_000),
            b'{"text": 1}',
        )
    ),
    *(
        (TEXT, body, JSON, 400, "invalid_text")
        for body in (
            b'{"text": ["a", " "]}',
            b'{"text": ""}',
            b'{"text": "a\\ud83d"}',
            *(b'{"text": "\\u%s"}' % letter for letter in (b"200b", b"feff", b"0007", b"00ad")),
            b'{"text": ["warm", "\\u0000"]}',
        )
    ),
    *(
        (TEXT, body, JSON, 400, "invalid_json")
        for body in (b'{"text": "a', b'{"text": "a\xff"}', b'{"text": "\\ud83d\\ude00')
    ),
    (TEXT, {"text": ["warm", LONG]}, None, 413, "element 1: "),
    (f"{TEXT}?top_k=4", {"text": "awful"}, None, 422, "invalid_request"),
    (READER, {"question": QUESTION}, None, 422, "invalid_request"),
    (READER, {"context": CONTEXT}, None, 422, "invalid_request"),
    (READER, {**ASKED, "question": None}, None, 422, "invalid_request"),
    (READER, {**ASKED, "context": [CONTEXT]}, None, 422, "invalid_request"),
    (READER, {**ASKED, "allow_no_answer": "yes"}, None, 422, "invalid_request"),
    (READER, [], None, 422, "invalid_request"),
    (f"{READER}?top_k=21", ASKED, None, 422, "invalid_request"),
    (READER, {**ASKED, "question": ""}, None, 400, "invalid_text"),
    (READER, {**ASKED, "context": "\t "}, None, 400, "invalid_text"),
    (READER, {**ASKED, "context": "\0"}, None, 400, "invalid_text"),
    (READER, {**ASKED, "context": "soup \ud83d"}, None, 400, "invalid_text"),
    *(
        (READER, {**ASKED, "context": text}, None, 413, "text_too_long")
        for text in (LONG, "e" + "\u0301" * 1_000_000, "a" * 10_000_000)
    ),
    (READER, b"warm soup", TEXT_PLAIN, 415, "unsupported_media_type"),
    *(
        (READER, body, JSON, 400, "invalid_json")
        for body in (b"", b'{"question": "a", "context": "\xff"}', b'{"question": "a", "context": "b')
    ),
    *(
        (VECTORS, {"text": "warm", **fields}, None, 422, words)
        for fields, words in (
            ({"dimensions": 1.5}, "dimensions"),
            ({"dimensions": [2]}, "dimensions"),
            ({"normalize": "yes"}, "normalize"),
        )
    ),
    (VECTORS, b'{"text": "a", "dimensions": NaN}', JSON, 400, "invalid_json"),
    (VECTORS, b'{"text": [[[["a"]]]]}', JSON, 422, "invalid_request"),
    (VECTORS, b'{"text": [%s""]}' % (b'"",' * 1_000_000), JSON, 422, "16384 elements"),
    (VECTORS, {"text": [""] * TOO_MANY}, None, 422, "1 to 4096 inputs"),
    (VECTORS, {"text": ["warm", "soup", "warm", LONG, "warm"]}, None, 413, "element 3: the text has"),
    (VECTORS, {"text": ["warm", "warm", "\ud83d"]}, None, 400, "an unpaired UTF-16 surrogate"),
    (RANKER, {**PAIRS, "texts": []}, None, 422, "send 1 to 4096 texts"),
    (RANKER, {**PAIRS, "texts": "warm"}, None, 422, "invalid_request"),
    (RANKER, {**PAIRS, "texts": [["warm"]]}, None, 422, "invalid_request"),
    (RANKER, {**PAIRS, "texts": ["warm", None]}, None, 422, "invalid_request"),
    (RANKER, {**PAIRS, "query": " "}, None, 400, "the query is empty"),
    (RANKER, {**PAIRS, "texts": ["warm", "\udfff"]}, None, 400, "an unpaired UTF-16 surrogate"),
    (RANKER, {**PAIRS, "texts": ["warm", LONG]}, None, 413, "text_too_long"),
    (RANKER, {**PAIRS, "texts": ["a" * 8000] * 2000}, None, 413, "text_too_long"),
    (RANKER, {**PAIRS, "texts": ["a"] * TOO_MANY}, None, 422, "send 1 to 4096 texts"),
    *(
        (RANKER, {**PAIRS, **fields}, None, status, words)
        for fields, status, words in (
            ({"query": "\0"}, 400, "the query has no characters"),
            ({"texts": ["warm " * 70]}, 413, "query and text 0 together have 74 tokens"),
            ({"query": "x" * 2**20, "truncate": True}, 413, "at most 4194304 are accepted"),
        )
    ),
    *(
        (TAGGER, {"text": "a", "aggregation_strategy": "max", **fields}, None, status, words)
        for fields, status, words in (
            ({"stride": 62}, 422, "stride must be from 0 to 61, not 62"),
            ({"stride": -1}, 422, "stride must be from 0 to 61, not -1"),
            ({"ignore_labels": "," * 10**6}, 422, "may have up to 1024 elements, not 1000001"),
            ({"text": "\0"}, 400, "has no characters that the model knows"),
        )
    ),
    *(
        (IMPLIED, {"text": "a", **fields}, None, status, words)
        for fields, status, words in (
            ({"candidate_labels": ["a", "\ud83d"]}, 400, "an unpaired UTF-16"),
            ({"candidate_labels": ["a"], "hypothesis_template": "{}\ud83d"}, 400, "an unpaired"),
            ({"candidate_labels": ["a"], "text_pair": "b"}, 422, "send text_pair or candidate_labels"),
            ({"multi_label": True}, 422, "multi_label needs candidate_labels"),
            ({"candidate_labels": ["a"], "text": " "}, 400, "the text is empty"),
            ({"candidate_labels": ["a"], "text": "\0"}, 400, "has no characters"),
            ({"candidate_labels": ["\0"], "hypothesis_template": "{}"}, 400, "has no characters"),
            ({**ANY, "candidate_labels": ["a" * 2**21]}, 413, "at most 2097152 are accepted"),
            ({**ANY, "text": "b" * 2**20}, 413, "at most 2097152 are accepted"),
        )
    ),
    (TAGGER, {"text": "a", "aggregation_strategy": "most"}, None, 422, "must be one of none, simple"),
    (TAGGER, {"text": "a", "stride": 2}, None, 422, "other than none"),
    (TAGGER, {"text": "bread " * 300, **SIMPLE, "stride": 61}, None, 413, "windows of 64 tokens"),
    (TAGGER, {"text": "a", "ignore_labels": ["O"] * 17_000}, None, 422, "more than 16384 elements"),
    (TAGGER, {"text": "a", "ignore_labels": [1]}, None, 422, "invalid_request"),
    (f"{TAGGER}?top_k=2", {"text": "a"}, None, 422, "invalid_request"),
    (IMPLIED, {"text": "a", "candidate_labels": ["b"] * 10**6}, None, 422, "more than 16384 elements"),
    (IMPLIED, {"text": "a", "candidate_labels": "b," * 10**6}, None, 422, "up to 4096 elements"),
    (IMPLIED, {"text": ["a", "b"], "candidate_labels": ["c", " "]}, None, 400, "element 1 of"),
    (IMPLIED, {"text": ["a"] * 64, "candidate_labels": "b" * 300_000}, None, 413, "text_too_long"),
    (IMPLIED, {"text": ["a"] * 4000, "hypothesis_template": "x" * 10**6}, None, 422, "needs candidate"),
    (
        "/predictions/implied",
        {"text": "a", "candidate_labels": ["b"] * 10**6},
        None,
        *(400, "more than 16384 elements"),
    ),
    (OWN, {"number": 7, "does": "refuse"}, None, 400, "7 is refused"),
    (OWN, {"number": 7, "does": "refuse late"}, None, 400, "7 is refused late"),
    (OWN, {"number": 7, "does": "fail"}, None, 500, "internal_error"),
    (OWN, {"number": "x"}, None, 422, "number: "),
    (OWN, [], None, 422, "invalid_request"),
    *((OWN, body, JSON, 400, "invalid_json") for body in (b"{", b"", b"   ", b"\xff\xfe")),
    (OWN, {"number": 1, "padding": "x" * 21_000_000}, None, 413, "payload_too_large"),
    (OWN, b"x", "image/jpeg", 415, "application/json"),
    (f"{OWN}?top_k=2", {"number": 1}, None, 422, "invalid_request"),
    (COUNTER, {"text": "warm " * 99}, None, 413, "text_too_long"),
    *(
        (f"/{path}/numbers", f'{{"point": [{text}, 0]}}'.encode(), JSON, 400, "not JSON")
        for path in ("predict", "predictions")
        for text in ("NaN", "-Infinity", "Infinity", "1e999", "-1e400", "9" * 400)
    ),
    *((NUMBERS, {"not_finite": kind}, None, 400, "not finite") for kind in ("nan", "inf")),
    (NUMBERS, {"exact": "NaN"}, None, 400, "not finite"),
    *(
        ("/v1/models/numbers:predict", {"instances": rows}, None, 400, "error")
        for rows in list[Any](([], [{}], [{}, {}], [{}, {"COUNT": 1}]))
    ),
    ("/v1/models/numbers:predict", {"inputs": {}}, None, 400, "error"),
    ("/v2/models/numbers/infer", {"inputs": []}, None, 400, "error"),
    ("/v2/models/numbers/infer", v2(NOT_FINITE=("BYTES", [1], ["\ud800"])), None, 400, "surrogate"),
    *(
        ("/v2/models/twice/infer", v2(x=("FP32", shape, []), i=("UINT8", shape, [])), None, 400, words)
        for shape, words in (
            ([1, 0, 2], "x must have the shape [N, -1, -1] or [-1, -1], not [1, 0, 2]"),
            ([1, 2, 0], "x must have the shape [N, -1, -1] or [-1, -1], not [1, 2, 0]"),
            ([0, 1, 1], "error"),
        )
    ),
    *(
        (f"/{path}", body, None, 400, f"{name} has a number outside the range of {kind}")
        for x, i, name, kind in ((1e39, 0, "x", "FP32"), (0, 256, "i", "UINT8"))
        for path, body in (
            ("v2/models/twice/infer", v2(x=("FP32", [1, 1, 1], [x]), i=("UINT8", [1, 1, 1], [i]))),
            ("v1/models/twice:predict", {"instances": [{"x": [[x]], "i": [[i]]}]}),
        )
    ),
    ("/predictions/sentiment", b"\xff", None, 400, "BadRequestException"),
    ("/predictions/sentiment", b"warm " * 90, None, 413, "RequestEntityTooLargeException"),
    ("/predictions/reader", {"question": QUESTION}, None, 400, "BadRequestException"),
    ("/predictions/reader", {**ASKED, "context": LONG}, None, 413, "RequestEntityTooLargeException"),
    ("/predictions/own", {"number": "x"}, None, 400, "number: "),
    ("/predictions/sums", {"a": [1]}, None, 400, "BadRequestException"),
    ("/predict/sums", {"image": "AAAA"}, None, 501, "not_supported"),
    *(
        ("/v1/models/sentiment:predict", {"instances": [row]}, None, 400, words)
        for row, words in (
            (1, "schema"),
            ({"TEXT_PAIR": "warm"}, "TEXT is missing"),
            ({"b64": "d2FybQ==", "TEXT_PAIR": "warm"}, "b64 is an alias for TEXT"),
            ({"TEXT": "a", "b64": "d2FybQ=="}, "b64 is an alias for TEXT"),
            ({"b64": "?"}, "TEXT is not valid base64"),
            ({"b64": "/w=="}, "UTF-8"),
            ("", "empty"),
        )
    ),
    *(
        ("/v1/models/own:predict", {"instances": rows}, None, 400, "error")
        for rows in (
            [],
            [1],
            [{"NUMBER": 1}, {"NUMBER": 1, "LENGTH": 2}],
            [{"LENGTH": 1}],
            [{"NUMBER": "x"}],
            [{"NUMBER": 2**70}],
            [{"NUMBER": 1, "OTHER": 2}],
        )
    ),
    ("/v1/models/own:predict", {"inputs": {"NUMBER": [1, 2], "LENGTH": [1]}}, None, 400, "error"),
    ("/v1/models/own:predict", {"inputs": {"NUMBER": []}}, None, 400, "error"),
    (
        "/v1/models/ranker:predict",
        {"inputs": {"QUERY": ["a"], "TEXTS": [["b"]]}},
        None,
        400,
        "a list of",
    ),
    ("/v1/models/sums:predict", {"instances": [{"a": [1, 2]}]}, None, 400, "b is missing"),
]
"""Path, body, Content-Type of bytes, status, and what the answer names."""


@pytest.mark.parametrize(("path", "body", "kind", "status", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(
    tasks: Service, path: str, body: Any, kind: str | None, status: int, words: str
) -> None:
    answer = tasks.post(path, body, kind)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text[:300]
    assert "secret" not in answer.text


# Triton's clients


def texts(*values: str) -> Array:
    """BYTES [N, 1]."""
    return np.array([[value] for value in values], object)


def tokens(text: str, pair: str) -> dict[str, Array]:
    """The tensors of a network for texts."""
    encoding = exports.word_piece().encode(text, pair)
    values = (encoding.ids, encoding.attention_mask, encoding.type_ids)
    return {name: np.array([row]) for name, row in zip(TOKENS, values, strict=True)}


TOKEN_IDS = {"input_ids": np.array([[2, 5, 3]]), "attention_mask": np.array([[1, 1, 1]])}
FLOATS, INTEGERS = np.arange(10, dtype=np.float32).reshape(5, 2) - 1, np.full((5, 2), 2)
TRITON: list[tuple[str, dict[str, Array], dict[str, Any]]] = [
    ("sentiment", {"TEXT": texts("warm", "some bread")}, {"LABEL": [[b"POSITIVE"], [b"NEUTRAL"]]}),
    ("sentiment", {"TEXT_PAIR": texts("awful"), "TEXT": texts("warm")}, {"LABEL": [[b"NEGATIVE"]]}),
    ("sentiment", {"TEXT": texts("warm")[0]}, {"LABEL": [b"POSITIVE"]}),
    ("sentiment_tensor", tokens("warm", "awful"), {"logits": [pytest.approx([24, 0, 2.4])]}),
    (
        "reader",
        {"CONTEXT": texts(CONTEXT), "QUESTION": texts(QUESTION)},
        {"ANSWER": [[b"warm soup"]], "START": [[START]], "END": [[END]]},
    ),
    (
        "reader",
        {"CONTEXT": texts(CONTEXT)[0], "QUESTION": texts(QUESTION)[0]},
        {"ANSWER": [b"warm soup"]},
    ),
    (
        "reader",
        {
            "QUESTION": texts(*[QUESTION] * 3),
            "CONTEXT": texts(CONTEXT, "bread " * 100 + "warm soup", "a table"),
            "ALLOW_NO_ANSWER": np.array([[False], [True], [True]]),
        },
        {"ANSWER": [[b"warm soup"], [b"warm soup"], [b""]], "START": [[START], [600], [0]]},
    ),
    (  # windows for 128 slots
        "reader",
        {"QUESTION": texts(*[QUESTION] * 9), "CONTEXT": texts(*["bread " * 300 + "warm soup"] * 9)},
        {"ANSWER": [[b"warm soup"]] * 9},
    ),
    (
        "vectors",
        {"TEXT": texts("warm", "soup"), "DIMENSIONS": np.array([[2], [2]])},
        {"EMBEDDING": [vector("warm", 2), vector("soup", 2)]},
    ),
    (
        "ranker",
        {"QUERY": texts("bread")[0], "TEXTS": texts("awful", "warm")[:, 0]},
        {"INDEX": [1], "SCORE": [pytest.approx(1 / (1 + np.exp(-10 * 12 / 5)), abs=1e-5)]},
    ),
    (
        "implied",
        {"TEXT": texts("soup", "soup"), "CANDIDATE_LABELS": texts("awful, warm", "bread,wonderful")},
        {"LABEL": [[b"warm"], [b"wonderful"]]},
    ),
    ("implied", {"TEXT": texts("warm")}, {"LABEL": [[b"Entailment"]]}),
    ("counter", {"TEXT": texts(*SENTENCES)}, {"TOKENS": [[count] for count in COUNTS]}),
    ("counter_tensor", TOKEN_IDS, {"states": [[[1, 0]] * 3]}),
    (
        "numbers",
        {"EXACT": np.array([EXACT]), "POINT": np.array([[EXACT, 1]]), "COUNTS": np.zeros((1, 0), int)},
        {"EXACT": [EXACT], "POINT": [EXACT, 1], "COUNTS": []},
    ),
    ("squares", {"NUMBER": np.array([3])}, {"SQUARE": [9], "ALL": [9]}),
    ("own", {"NUMBER": np.array([[9]])}, {"NUMBER": [[9]], "TEXT": [[b"1 cpu"]]}),
    ("own", {"NUMBER": np.array([3, 4]), "PADDING": texts("é", "b,c")[:, 0]}, {"NUMBER": [3, 4]}),
    (
        "sums",
        {"b": INTEGERS, "a": FLOATS},
        {"sum": (FLOATS + INTEGERS).tolist(), "more": (FLOATS > INTEGERS).tolist()},
    ),
    ("sums", {"a": FLOATS[2], "b": INTEGERS[0]}, {"sum": [5, 6], "more": [True, True]}),
]
NO_TRITON: list[tuple[str, dict[str, Array], str]] = [
    ("sentiment", {"TEXT": texts(" ")}, "empty"),
    ("sentiment", {"TEXT": texts("warm " * 90)}, "92 tokens.* 64 "),
    ("sentiment", {"TEXT": texts("warm", "warm " * 90)}, "element 1: "),
    ("sentiment", {"TEXT_PAIR": texts("warm")}, "TEXT"),
    ("sentiment", {"TEXT": texts("warm"), "TEXT_PAIR": texts("a", "b")}, "different numbers"),
    ("sentiment", {"IMAGE": texts("warm")}, "IMAGE"),
    ("sentiment_tensor", {name: np.ones((1, 65), int) for name in TOKENS}, "1 to 64 "),
    ("reader", {"QUESTION": texts(" "), "CONTEXT": texts("a")}, "question is empty"),
    ("reader", {"QUESTION": texts("a"), "CONTEXT": texts(LONG)}, "windows of 64 tokens"),
    ("reader", {"QUESTION": texts("a")}, "CONTEXT"),
    ("reader", {"QUESTION": texts("a"), "CONTEXT": texts("a", "b")}, "different numbers"),
    ("tagger", {"TEXT": texts("a"), "STRIDE": np.array([[2]])}, "other than none"),
    ("implied", {"TEXT": texts("a"), "CANDIDATE_LABELS": texts(" ")}, "candidate_labels is empty"),
    ("own", {"NUMBER": np.array([5]), "DOES": np.array(["refuse"], object)}, "5 is refused"),
    ("own", {"DOES": np.array(["refuse"], object)}, "NUMBER"),
    ("own_tensor", {"NUMBER": np.array([5])}, "no model"),
    ("numbers", {"EXACT": np.array([np.nan])}, "exact is not finite|not JSON"),
    ("numbers", {"NOT_FINITE": np.array(["inf"], object)}, "not finite"),
    ("squares", {"NUMBER": np.array([2**40])}, "SQUARE is outside the range of INT64.*POST /predict"),
    ("sums", {"a": FLOATS[:, :1], "b": INTEGERS}, "shape"),
    ("sums", {"a": FLOATS, "b": INTEGERS[:2]}, "different numbers"),
    ("sums", {"a": INTEGERS, "b": INTEGERS}, "FP32"),
    ("sums", {"a": FLOATS}, "a, b"),
    ("sums", {"a": FLOATS, "c": INTEGERS}, "'c'"),
]
wires = pytest.mark.parametrize("wire", ["http", "json", "grpc"])


@wires
@pytest.mark.parametrize(("model", "arrays", "expected"), TRITON, ids=range(len(TRITON)))
def test_what_tritons_clients_are_answered(
    tasks: Service, wire: str, model: str, arrays: dict[str, Array], expected: dict[str, Any]
) -> None:
    outputs = tasks.triton(wire, model, arrays)
    assert {name: outputs[name].tolist() for name in expected} == expected


@wires
@pytest.mark.parametrize(("model", "arrays", "words"), NO_TRITON, ids=range(len(NO_TRITON)))
def test_what_tritons_clients_are_refused(
    tasks: Service, wire: str, model: str, arrays: dict[str, Array], words: str
) -> None:
    with pytest.raises(InferenceServerException, match=words):
        tasks.triton(wire, model, arrays)


@pytest.mark.parametrize(("model", "arrays", "expected"), TRITON, ids=range(len(TRITON)))
def test_tensorflow_servings_clients_get_the_same(
    tasks: Service, model: str, arrays: dict[str, Array], expected: dict[str, Any]
) -> None:
    wanted, outputs = tasks.triton("grpc", model, arrays), tasks.tensorflow(model, arrays)
    assert {*expected} <= {*outputs} == {*wanted}
    for name, array in wanted.items():
        same = outputs[name].reshape(array.shape)
        if array.dtype == object:
            assert same.tolist() == array.tolist()
        else:
            np.testing.assert_allclose(same, array, rtol=1e-5)


@pytest.mark.parametrize(("model", "arrays", "words"), NO_TRITON, ids=range(len(NO_TRITON)))
def test_tensorflow_servings_clients_are_refused_the_same(
    tasks: Service, model: str, arrays: dict[str, Array], words: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        tasks.tensorflow(model, arrays)
    assert caught.value.code().name == ("NOT_FOUND" if words == "no model" else "INVALID_ARGUMENT")
    assert re.search(words, caught.value.details())


@wires
def test_the_best_answers_to_several_questions(tasks: Service, wire: str) -> None:
    contexts = texts(CONTEXT, "bread " * 100 + "warm soup", "a table")
    arrays = {"QUESTION": texts(*[QUESTION] * 3), "CONTEXT": contexts}
    several = tasks.triton(wire, "reader", arrays, {"top_k": 2})
    assert several["ANSWER"].shape == several["END"].shape == (3, 2)
    kinds = {name: str(array.dtype) for name, array in several.items()}
    assert kinds == {"ANSWER": "object", "SCORE": "float32", "START": "int64", "END": "int64"}
    with pytest.raises(InferenceServerException, match="different numbers of ANSWER"):
        tasks.triton(wire, "reader", arrays, {"top_k": 20})


@wires
def test_entities_are_json(tasks: Service, wire: str) -> None:
    arrays = {"TEXT": texts("a table", "a"), "AGGREGATION_STRATEGY": texts("none", "first")}
    (table,), (nothing,) = tasks.triton(wire, "tagger", arrays)["ENTITIES"]
    assert has(json.loads(table), [{"entity": "PLACE", "word": "table", "start": 2}])
    assert nothing == b"[]"


@wires
def test_classes_of_a_request_are_named(tasks: Service, wire: str) -> None:
    arrays = {"TEXT": texts("soup"), "CANDIDATE_LABELS": texts("awful, warm, table, bread")}
    several = tasks.triton(wire, "implied", arrays, {"top_k": 4})
    assert several["LABEL"][0, 0] == b"warm"
    assert several["PROBABILITY"].shape == (1, 4)
    body = v2(**{name: ("BYTES", [1], array[0].tolist()) for name, array in arrays.items()})
    body["outputs"] = [{"name": "PROBABILITY", "parameters": {"classification": 4}}]
    torchserves = tasks.post("/predictions/implied", {"text": "soup", **ANY}).json()
    assert list(torchserves) == ["warm", "awful"]
    (output,) = tasks.post("/v2/models/implied/infer", body).json()["outputs"]
    assert output["data"][0].endswith(":1:warm")
    assert output["shape"] == [1, 4]


def test_statistics_of_each(tasks: Service) -> None:
    with tritonclient.grpc.InferenceServerClient(tasks.grpc) as client:
        assert all(client.is_model_ready(name) for name in MODELS)
        statistics = client.get_inference_statistics(as_json=True)["model_stats"]
        assert {row["name"] for row in statistics} >= {*MODELS} - {"food11"} | {"food_classifier"}


def test_numbers_come_in_every_documented_shape(tasks: Service) -> None:
    path = "/v2/models/own/infer"
    for shape in ([2], [2, 1]):
        number = {"name": "NUMBER", "datatype": "INT64", "shape": shape, "data": [3, 4]}
        assert tasks.post(path, {"inputs": [number]}).json()["outputs"][0] == number
    requested = {"name": "NUMBER", "parameters": {"classification": 1}}
    answer = tasks.post(path, {"inputs": [number], "outputs": [requested]})
    assert (answer.status_code, "NUMBER" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("shape", "data", "status", "expected"),
    [
        ([1, 4], [0, 1, 0, 1], 200, [0, 0, 1, 3]),
        ([1, 1], [0], 200, []),
        ([2, 1], [1, 1], 200, [0, 0, 0, 0]),
        ([2, 2], [0, 1, 1, 1], 400, "places differs in size"),
        ([1, 5], [0] * 5, 400, "1 to 4 "),
        ([1, 0], [], 400, ""),
        ([1, 2**31 - 1], [0], 400, ""),
        ([1, 4], [1, 1, 1, 1], 400, "cannot compute"),
    ],
)
def test_sizes_that_vary_have_bounds(
    tasks: Service, shape: list[int], data: list[float], status: int, expected: Any
) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": data}
    answer = tasks.post("/v2/models/places/infer", {"inputs": [tensor]})
    assert answer.status_code == status, answer.text
    if status == 200:
        assert answer.json()["outputs"][0]["data"] == expected
    else:
        assert expected in answer.json()["error"]


# load


def test_texts_of_all_lengths_at_once(tasks: Service) -> None:
    words = ["awful", "bread", "wonderful"]
    bodies = [{"text": " ".join([words[n % 3]] * (1 + n % 40))} for n in range(120)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda body: tasks.post(TEXT, body).json(), bodies))
    assert [answer["prediction"] for answer in answers] == exports.LABELS * 40


# what the service says of its models


DESCRIBED: dict[str, Any] = {
    "food11": {"task": "image-classification"},
    "sentiment": {
        "task": "text-classification",
        "labels": exports.LABELS,
        "text": {
            "max_tokens": 64,
            "pad_token_id": 0,
            "truncation_side": "right",
            "activation": "softmax",
        },
        "limits": {"request_bytes": 20 * 2**20, "text_bytes": 256 * 1024, "tokens": 64},
    },
    "reader": {"task": "question-answering", "labels": [], "text": {"max_tokens": 64}},
    "tagger": {"task": "token-classification", "labels": exports.TAG_NAMES},
    "implied": {"task": "zero-shot-classification", "text": {"max_tokens": 64}},
    "counter": {"task": "token-count", "limits": {"tokens": 64}, "example": {"text": "warm bread"}},
    "own": {
        "task": "tests.fake.python_task:Obedient",
        "labels": [],
        "image": None,
        "answer_schema": {"properties": {"number": {}, "text": {}}},
    },
    "sums": {"task": "tensor", "request_schema": None, "example": None},
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_each_is_described(tasks: Service, name: str) -> None:
    described = tasks.get(f"/model/{name}")
    assert has(described, {"name": name, **DESCRIBED[name]}), described


def test_every_example_in_swagger_is_answered(tasks: Service, onnx_url: str) -> None:
    called, alone = tasks.check_examples(), Service(onnx_url, "").check_examples()
    of_texts = {
        *("/v1/embeddings", "/embeddings", "/embed", "/similarity", "/rerank", "/tokenize", "/decode"),
        *(
            "/",
            "/invocations",
            "/v1/rerank",
            "/v2/rerank",
            "/v1/ranking",
            "/score",
            "/v1/score",
            "/models/{model}",
        ),
        *("/openai/v1/embeddings", "/openai/deployments/{model}/embeddings"),
        *("/api/embed", "/api/embeddings", "/api/show", "/vectors"),
    }
    of_all = {
        *("/v2/models/{model}/infer", "/v1/models/{model}:predict", "/predictions/{model}"),
        "/v2/repository/index",
    }
    assert {*of_texts, *of_all, "/predict/counter"} <= called
    assert {*of_all, "/predict"} <= alone
    assert {"/info", "/api/tags", "/meta"} <= called  # of protocols for some tasks only


def test_every_model_has_examples_in_swagger(tasks: Service) -> None:
    document = tasks.get("/openapi.json")
    assert document["info"]["title"] == "Model server"
    paths = document["paths"]
    named = {path.removeprefix("/predict/") for path in paths if path.startswith("/predict/")}
    assert named == {"food11", *TEXTS, *PYTHON}
    assert {f"/model/{name}" for name in MODELS} <= set(paths)
    for template in ("/v2/models/{model}/infer", "/v1/models/{model}:predict", "/predictions/{model}"):
        call = paths[template]["post"]
        (parameter,) = (part for part in call["parameters"] if part["name"] == "model")
        bodies = call["requestBody"]["content"][JSON]["examples"]
        assert {"this model", "sentiment", "reader", "own"} <= set(bodies) <= set(parameter["examples"])
    assert "$ref" in paths[OWN]["post"]["requestBody"]["content"][JSON]["schema"]
    kinds = paths[TEXT]["post"]["requestBody"]["content"]
    assert set(kinds) == {JSON, TEXT_PLAIN, "application/octet-stream"}
    assert list(paths[READER]["post"]["requestBody"]["content"]) == [JSON]


def test_tf_serving_and_kserve_know_each(tasks: Service) -> None:
    names = tasks.get("/v1/models")["models"]
    assert {*MODELS, "food_classifier", "sentiment_tensor"} <= set(names)
    for name in names:
        (status,) = tasks.get(f"/v1/models/{name}")["model_version_status"]
        assert (status["version"], status["state"]) == ("1", "AVAILABLE")
        assert tasks.get(f"/v1/models/{name}/metadata")["model_spec"]["name"] == name
    unknown = requests.get(f"{tasks.url}/v1/models/nothing", timeout=60)
    assert (unknown.status_code, list(unknown.json())) == (404, ["error"])


def test_torchserve_knows_each(tasks: Service) -> None:
    listed = {row["modelName"]: row["modelUrl"] for row in tasks.get("/models")["models"]}
    assert listed["sentiment"] == "export-1"
    assert listed["food11"] == listed["food_classifier"] == "food11"
    for name in listed:
        (described,) = tasks.get(f"/models/{name}")
        assert (described["modelName"], described["modelUrl"]) == (name, listed[name])
        assert {worker["status"] for worker in described["workers"]} == {"READY"}
    unknown = requests.get(f"{tasks.url}/models/nothing", timeout=60)
    assert (unknown.status_code, unknown.json()["code"]) == (404, 404)


# our clients


def test_our_client(tasks: Service, tmp_path: Path) -> None:
    (photo := tmp_path / "photo.jpg").write_bytes(pictures.jpeg())
    with Client(tasks.url) as client:
        label = client.predict(photo).label
        assert client.predict(photo, model="food11").label == label
        (item,) = client.predict_many([photo], model="food11")
        assert item.prediction
        assert item.prediction.label == label
        assert client.classify_text("warm", "awful", model="sentiment").label == "NEGATIVE"
        top = client.classify_text("awful", top_k=3, model="sentiment").top
        assert [score.label for score in top] == exports.LABELS
        span = client.answer(QUESTION, CONTEXT, top_k=2, model="reader")
        assert (span.start, span.end, span.answer, len(span.top)) == (START, END, CONTEXT[START:END], 2)
        nothing = client.answer(QUESTION, CONTEXT, allow_no_answer=True, top_k=20, model="reader")
        assert "" in [span.answer for span in nothing.top]
        vectors = client.embed(["warm", "soup"], dimensions=2, model="vectors").vectors
        assert vectors == [vector("warm", 2), vector("soup", 2)]
        ranks = client.rerank(**PAIRS, top_k=2, model="ranker").ranking
        assert [(rank.index, rank.text) for rank in ranks] == [(2, "wonderful"), (1, "soup")]
        assert client.rerank(**PAIRS, raw_scores=True, model="ranker").ranking[0].score > 1
        assert client.call({"number": 3}, model="own").body["number"] == 3
        assert (client.model("sums").name, client.model().name) == ("sums", "food11")
        for name, code in (("sums", "not_supported"), ("nothing", "not_found")):
            with pytest.raises(ServingClientError) as refused:
                client.call({"text": "a"}, model=name)
            assert refused.value.code == code


def test_our_client_over_tcp(tasks: Service) -> None:
    question = b'{"question": "what was cold", "context": "the warm soup"}'
    bodies: list[tuple[bytes, str | None, int, str]] = [
        (pictures.jpeg(), None, 200, "prediction"),
        (pictures.jpeg(), "food11", 200, "prediction"),
        (b'{"text": "warm"}', "sentiment", 200, "prediction"),
        (question, "reader", 200, "top"),
        (b"warm soup", "reader", 400, "code"),
        (SENTENCES[1].encode(), "counter", 200, "tokens"),
        (b'{"text": "warm"}', "nothing", 404, "code"),
    ]
    with TcpClient("127.0.0.1", tasks.tcp_port) as client:
        for body, model, status, key in bodies:
            answer = client.predict(body, top_k=2 if model == "reader" else 1, model=model)
            assert (answer.status, key in answer.content) == (status, True), answer.content


@pytest.fixture(params=["http", "tcp"])
def address(request: pytest.FixtureRequest, tasks: Service) -> str:
    return tasks.url if request.param == "http" else f"tcp://127.0.0.1:{tasks.tcp_port}"


def test_the_command(address: str, tmp_path: Path) -> None:
    photo, text = tmp_path / "photo.jpg", tmp_path / "text.txt"
    photo.write_bytes(pictures.jpeg())
    text.write_text("no picture")
    good = ask(str(photo), str(photo), "--top-k", "2", SERVING_URL=address)
    assert good.returncode == 0
    assert re.fullmatch(rf"({photo}: .+ [\d.]+ %, .+ [\d.]+ % \([\d.]+ ms\)\n){{2}}", good.stdout)
    mixed = ask(str(text), str(photo), str(tmp_path / "none"), "--url", address)
    assert (mixed.returncode, mixed.stdout.count("\n")) == (1, 1)
    assert "400" in mixed.stderr
    assert "No such file" in mixed.stderr
    done = ask("--url", address, "--model", "sentiment", "--text", "warm", "--text", " ")
    assert (done.returncode, done.stdout[:15]) == (1, "warm: POSITIVE ")
    assert (done.stderr[:3], "400" in done.stderr) == (" : ", True)
    assert ask("--url", address, "--model", "nothing", "--text", "a").returncode == 1


def test_the_command_embeds_and_ranks(address: str) -> None:
    embed = ["--model", "vectors", "--url", address]
    vectors = run(app, "--embed", *SENTENCES[:2], *embed)
    numbers = r"4 numbers(, -?\d\.\d{4}){3} \.\.\. \([\d.]+ ms\)"
    for line, text in zip(vectors.splitlines(), SENTENCES[:2], strict=True):
        assert re.fullmatch(f"{text}: {numbers}", line), line
    rerank = ["--rerank", PAIRS["query"], *PAIRS["texts"], "--model", "ranker", "--url", address]
    head, *lines = run(app, *rerank).splitlines()
    assert re.fullmatch(r"bread \([\d.]+ ms\)", head)
    assert [line.split(maxsplit=1)[1] for line in lines] == ["wonderful", "soup", "awful", "awful"]
    scores = [float(line.split()[0]) for line in lines]
    assert scores == sorted(scores, reverse=True)
    best = run(app, *rerank, "--top-k", "1")
    assert best.splitlines()[1:] == lines[:1]
    assert "the text is empty" in run(app, "--embed", "", *embed, code=1)


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--embed"], ["--rerank", "warm"], ["--embed", "--rerank", "warm", "text"]),
        *(["--embed", "a", "--text", "b"], ["photo.jpg", "--text", "b"], ["a", "--json", "{}"]),
    ],
)
def test_arguments_that_contradict_each_other(arguments: list[str]) -> None:
    assert "--embed" in run(app, *arguments, code=2)


def test_the_command_sends_json_and_questions(tasks: Service, tmp_path: Path) -> None:
    (tmp_path / "context.txt").write_text(CONTEXT, encoding="utf-8")
    arguments = ["--question", QUESTION, "--context-file", str(tmp_path / "context.txt")]
    done = ask("--url", tasks.url, "--model", "reader", *arguments)
    assert done.stdout.startswith(f"{QUESTION}: {CONTEXT[START:END]} "), done
    done = ask("--url", tasks.url, "--model", "counter", "--text", "warm")
    assert done.stdout.startswith(f'warm: {{"tokens": {COUNTS[0]}}} (')
    done = ask("--url", tasks.url, "--model", "own", "--json", '{"number": 3}')
    assert (done.returncode, done.stdout.startswith('{"number": 3}: {"number": 3')) == (0, True), done
    assert ask("--url", tasks.url, "--json", "[1]").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "typed", "answers"),
    [
        (["--question"], f"{CONTEXT}\n{QUESTION}\nwhat is warm\n\n{QUESTION}\n", 2),
        (["--question", "--top-k=2"], f"{CONTEXT}\n{QUESTION}", 1),
        (["--question", QUESTION], CONTEXT, 1),
        (["--question", QUESTION, "--question"], f"{CONTEXT}\n{QUESTION}\n", 2),
        (["--question"], CONTEXT, 0),
    ],
)
def test_questions_are_asked_in_a_dialogue(
    address: str, arguments: list[str], typed: str, answers: int
) -> None:
    said = run(app, *arguments, "--url", address, "--model=reader", typed=typed)
    assert (said.count(": warm soup "), said.count(" ms)")) == (answers, answers), said


def test_a_dialogue_without_a_context_is_refused(address: str) -> None:
    said = run(app, "--question", QUESTION, "--url", address, "--model=reader", typed="", code=1)
    assert "the context is empty" in said


@pytest.mark.parametrize(
    ("url", "code"),
    [("http://127.0.0.1:1", 1), ("tcp://127.0.0.1:1", 1), ("tcp://nowhere", 2), ("nowhere", 2)],
)
def test_the_command_with_nobody_to_ask(tmp_path: Path, url: str, code: int) -> None:
    (tmp_path / "photo.jpg").write_bytes(pictures.jpeg())
    done = ask(str(tmp_path / "photo.jpg"), "--url", url, "--timeout-s=0.5")
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done


def test_check_refuses_an_answer_that_is_not_finite(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which the backend would set for good
    for kind, status in (("", 0), ("inf", 1)):
        request = json.dumps({"not_finite": kind})
        assert check.run("tests.fake.python_task:Numbers", None, request) == status
    assert "not finite" in capsys.readouterr().err


# at start


def test_long_texts_are_truncated_where_that_is_set(tmp_path: Path) -> None:
    folder = exports.saved(tmp_path / "models" / "short", exports.byte_level(), {"pad_token_id": 1})
    env = {"SERVING_MODEL_DIR": str(folder), "SERVING_LONG_TEXT": "truncate"}
    with servers.api("fastapi_onnx", env | servers.UNMEASURED) as url:
        service = Service(url, "")
        for text, truncated in (
            ("warm " * 80 + "awful " * 500, True),
            (["warm", "warm " * 80], True),
            ("warm " * 20, False),
        ):
            answer = service.post("/predict", {"text": text})
            assert answer.status_code == 200
            assert ("X-Input-Truncated" in answer.headers) is truncated
        assert service.post("/predict", {"text": "warm " * 80 + "awful " * 500}).json() == {
            "prediction": "POSITIVE",
            "probability": pytest.approx(1, abs=0.1),
        }


@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_a_tokeniser_that_cannot_be_read_is_named(tmp_path: Path, web_processes: str) -> None:
    folder = exports.saved(tmp_path / "broken", exports.word_piece(), {})
    (folder / "tokenizer.json").write_text("{}")
    env = {"SERVING_MODEL_DIR": str(folder), "SERVING_WEB_PROCESSES": web_processes}
    check_one_sentence(ended({**env, "SERVING_INSTANCES": "1"}, "fastapi_onnx"), "tokenizer.json")
