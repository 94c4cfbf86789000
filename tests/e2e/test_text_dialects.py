"""Embeddings, ranking and classes of texts by all protocols for them alone.

`test_huggingface_client.py` sends them hostile bodies.
"""

import base64
import gzip
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import requests

from smallplates import __version__
from tests import exports, text_service
from tests.text_service import ALIAS, DIMENSIONS, MOST_TOKENS

QUERY, DOCUMENTS = "the soup", ["awful and dull", "wonderful and warm", "the table"]
ORDER = [1, 2, 0]
"""Places of DOCUMENTS, best first."""

LONG = "soup " * 100
MOST = "soup " * (MOST_TOKENS - 3)
"""With one word more, and two special tokens, as long as the model takes."""

Json = Any


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """All protocols; the default model makes embeddings."""
    with text_service.running(tmp_path_factory.mktemp("texts")) as url:
        yield url


@pytest.fixture(scope="module")
def other_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two protocols and token ids; the default model classifies."""
    settings = {"SERVING_PROTOCOLS": "openai,rerank", "SERVING_ACCEPT_TOKEN_IDS": "true"}
    folder = tmp_path_factory.mktemp("others")
    with text_service.running(folder, "feelings,words,judge", **settings) as url:
        yield url


def post(url: str, content: Json, **headers: str) -> requests.Response:
    return requests.post(url, json=content, headers=headers, timeout=60)


def answer(url: str, content: Json, **headers: str) -> Json:
    response = post(url, content, **headers)
    assert response.status_code == 200, response.text
    return response.json()


def native(url: str, **fields: Json) -> list[float]:
    vector: list[float] = answer(f"{url}/predict/words", fields)["embedding"]
    return vector


# OpenAI


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
@pytest.mark.parametrize(("name", "dimensions"), [("words", None), (ALIAS, 2), (None, 4)])
def test_openai_embeddings(url: str, path: str, name: str | None, dimensions: int | None) -> None:
    texts = ["warm soup", "the table", "warm soup"]
    content = {"input": texts, "model": name, "dimensions": dimensions, "user": "me", "priority": 1}
    numbers = answer(url + path, {**content, "encoding_format": "float"})
    packed = answer(url + path, {**content, "encoding_format": "base64"})
    assert (numbers["object"], numbers["model"]) == ("list", name or "words")
    assert [(row["object"], row["index"]) for row in numbers["data"]] == [
        ("embedding", index) for index in range(3)
    ]
    for text, row, bits in zip(texts, numbers["data"], packed["data"], strict=True):
        vector = np.array(row["embedding"], "<f4")
        assert np.frombuffer(base64.b64decode(bits["embedding"]), "<f4").tolist() == vector.tolist()
        assert np.linalg.norm(vector) == pytest.approx(1)
        cut = np.array(native(url, text=text, normalize=False)[: dimensions or DIMENSIONS])
        assert vector == pytest.approx(cut / np.linalg.norm(cut), abs=1e-6)
    tokens = sum(len(tokens) for tokens in answer(f"{url}/tokenize", {"inputs": texts}))
    assert numbers["usage"] == packed["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


@pytest.mark.parametrize(
    ("content", "same"),
    [
        ({"input": "soup", "input_type": "query"}, {"text": "warm soup"}),
        ({"input": "soup", "input_type": "passage"}, {"text": "table soup"}),
        ({"input": "soup", "input_type": "document"}, {"text": "table soup"}),
        ({"input": "soup", "input_type": "search_query"}, {"text": "warm soup"}),
        ({"input": "soup", "input_type": "clustering"}, {"text": "soup"}),
        ({"input": "soup", "input_type": "recipes"}, {"text": "cold soup"}),
        ({"input": "soup", "task": "retrieval.query"}, {"text": "warm soup"}),
        ({"input": "soup", "task": "retrieval.passage"}, {"text": "table soup"}),
        ({"input": "soup", "task": "text-matching", "late_chunking": False}, {"text": "soup"}),
        ({"input": "soup", "embedding_type": ["float"], "encoding_type": "float"}, {"text": "soup"}),
        ({"input": [{"text": "soup"}]}, {"text": "soup"}),
        ({"input": f"table {LONG}", "truncation": True}, {"text": f"table {MOST}"}),
        ({"input": "soup", "output_dimension": 2}, {"text": "soup", "dimensions": 2}),
        ({"input": "soup", "dimensions": 0}, {"text": "soup"}),
        ({"input": "soup", "output_dtype": "float", "truncation": None}, {"text": "soup"}),
        ({"input": f"table {LONG}", "truncate_prompt_tokens": -1}, {"text": f"table {MOST}"}),
        ({"input": f"table {LONG}", "truncate_prompt_tokens": MOST_TOKENS}, {"text": f"table {MOST}"}),
        ({"input": f"table {LONG}", "truncate": "END"}, {"text": f"table {MOST}"}),
        ({"input": f"table {LONG}", "truncate": True}, {"text": f"table {MOST}"}),
        ({"input": f"{LONG} table", "truncate": "START"}, {"text": f"{MOST}table"}),
        (
            {"input": f"{LONG} table", "truncate_prompt_tokens": -1, "truncation_side": "left"},
            {"text": f"{MOST}table"},
        ),
        ({"input": "soup", "prompt_name": "recipes", "task": "query"}, {"text": "cold soup"}),
        ({"input": "soup", "normalized": False}, {"text": "soup", "normalize": False}),
        ({"input": "soup", "normalize": False}, {"text": "soup", "normalize": False}),
        ({"input": "soup", "use_activation": False}, {"text": "soup", "normalize": False}),
        ({"input": "soup", "normalized": True, "use_activation": None}, {"text": "soup"}),
        (
            {"input": "soup", "embed_dtype": "float32", "endianness": "native", "modality": "text"},
            {"text": "soup"},
        ),
        ({"input": "soup", "add_special_tokens": True, "return_multivector": False}, {"text": "soup"}),
    ],
)
def test_fields_of_vllm_nim_voyage_and_jina(url: str, content: Json, same: Json) -> None:
    (row,) = answer(f"{url}/v1/embeddings", content)["data"]
    assert row["embedding"] == pytest.approx(native(url, **same, truncate=True), abs=1e-6)


@pytest.mark.parametrize(
    ("change", "cure"),
    [
        ({"encoding_type": "binary"}, "leave out encoding_type, or send float"),
        ({"late_chunking": True}, "leave out late_chunking, or send false"),
        ({"embed_dtype": "float16"}, "leave out embed_dtype, or send float32"),
    ],
)
def test_how_to_go_on_without_what_is_missing(url: str, change: Json, cure: str) -> None:
    error = post(f"{url}/v1/embeddings", {"input": "soup", **change}).json()["error"]
    assert cure in error["message"]


@pytest.mark.parametrize("path", ["/v1/embeddings/", "//v1/embeddings", "/v1//embeddings"])
def test_a_slash_too_many(url: str, path: str) -> None:
    response = post(url + path, {"input": "soup"})
    assert response.status_code == 404
    assert "write /v1/embeddings, without the extra slash" in response.text


def test_as_many_texts_as_openai_takes(url: str) -> None:
    texts = [f"soup {number}" for number in range(2048)]
    data = answer(f"{url}/v1/embeddings", {"input": texts})["data"]
    assert [row["index"] for row in data] == [*range(2048)]
    assert data[1]["embedding"] == pytest.approx(native(url, text="soup 1"), abs=1e-6)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    """OpenAI's own client for Python, unmodified."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_openais_client_asks_for_base64(client: openai.OpenAI) -> None:
    usual = client.embeddings.create(input=DOCUMENTS, model=ALIAS)
    floats = client.embeddings.create(input=DOCUMENTS, model=ALIAS, encoding_format="float")
    for row, numbers in zip(usual.data, floats.data, strict=True):
        assert len(row.embedding) == DIMENSIONS
        assert numbers.embedding == pytest.approx(row.embedding)
    assert (usual.usage, usual.model) == (floats.usage, ALIAS)
    assert {"words", "judge", ALIAS} <= {model.id for model in client.models.list()}
    assert client.models.retrieve(ALIAS).owned_by == "smallplates"


def test_errors_of_openais_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.embeddings.create(input=DOCUMENTS, model="nobody")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")
    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):
        client.chat.completions.create(messages=[{"role": "user", "content": "soup"}], model="words")
    with pytest.raises(openai.BadRequestError) as foreign:  # ids of tokens, with the cure
        client.embeddings.create(input=[[9906, 1917]], model=ALIAS)
    assert "check_embedding_ctx_length=False" in foreign.value.message
    assert "SERVING_ACCEPT_TOKEN_IDS" in foreign.value.message


def azure(url: str, key: str) -> openai.AzureOpenAI:
    """Azure's client, unmodified."""
    version = "2024-10-21"
    return openai.AzureOpenAI(azure_endpoint=url, api_version=version, api_key=key, max_retries=0)


def test_azures_client(tmp_path: Path) -> None:
    """The name of a deployment is a model's name, and the key is in a header of its own."""
    with text_service.running(tmp_path, SERVING_API_KEY="guest") as url:
        with azure(url, "guest") as client:
            vectors = client.embeddings.create(input=DOCUMENTS, model=ALIAS)
        plain = openai.OpenAI(base_url=f"{url}/v1", api_key="guest", max_retries=0)
        second = openai.OpenAI(base_url=f"{url}/openai/v1", api_key="guest", max_retries=0)
        with plain, second:
            for each in (plain, second):
                same = each.embeddings.create(input=DOCUMENTS, model=ALIAS)
                assert (vectors.data, vectors.model) == (same.data, ALIAS)
        with azure(url, "thief") as wrong, pytest.raises(openai.AuthenticationError) as refused:
            wrong.embeddings.create(input=DOCUMENTS, model=ALIAS)
        assert refused.value.code == "invalid_api_key"


def test_errors_of_azures_client(url: str) -> None:
    with azure(url, "any") as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            client.embeddings.create(input=DOCUMENTS, model="nobody")
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError, match="/openai/deployments/words/chat/completions"):
            client.chat.completions.create(messages=[{"role": "user", "content": "a"}], model="words")


def test_own_token_ids_are_accepted_by_a_setting(other_url: str) -> None:
    tokenizer = exports.word_piece()
    ids = [tokenizer.encode(text).ids for text in DOCUMENTS]
    path = f"{other_url}/v1/embeddings"
    by_ids, by_texts = answer(path, {"input": ids}), answer(path, {"input": DOCUMENTS})
    assert by_ids["data"] == by_texts["data"]
    assert answer(path, {"input": ids[0]})["data"] == by_texts["data"][:1]
    wrongs: list[Json] = [[[1], "soup", 2], [10**6], [[-1]], [2**70], [[]]]
    for wrong in wrongs:
        assert post(path, {"input": wrong}).status_code == 400


def test_the_models_as_openai_and_kserve_list_them(url: str, other_url: str) -> None:
    both, alone = (requests.get(f"{base}/v1/models", timeout=60).json() for base in (url, other_url))
    assert {"words", "words_tensor", ALIAS} <= {*both["models"]}
    short = [requests.get(f"{base}/models", timeout=60).json() for base in (url, other_url)]
    for listed in (both, alone, *short):
        cards = {card["id"]: card for card in listed["data"]}
        assert {*cards} == {"words", "judge", "feelings", ALIAS, "org/judge"}
        assert (cards[ALIAS]["object"], cards[ALIAS]["max_model_len"]) == ("model", MOST_TOKENS)
    one = requests.get(f"{url}/v1/models/{ALIAS}", timeout=60).json()
    assert (one["id"], one["model_version_status"][0]["state"]) == (ALIAS, "AVAILABLE")
    assert requests.get(f"{other_url}/v1/models/{ALIAS}", timeout=60).json() == {**cards[ALIAS]}
    for base, name in product((url, other_url), ("org/judge", "org%2Fjudge")):
        assert requests.get(f"{base}/v1/models/{name}", timeout=60).json()["id"] == "org/judge"
    texts = [requests.get(f"{base}/v1/models/x", timeout=60) for base in (url, other_url)]
    assert [response.status_code for response in texts] == [404, 404]
    assert isinstance(texts[0].json()["error"], str)
    assert texts[1].json()["error"]["code"] == "model_not_found"


# TEI


@pytest.mark.parametrize("path", ["/embed", "/", "/invocations"])
def test_tei_embed(url: str, path: str) -> None:
    (single,) = answer(url + path, {"inputs": "warm soup"})
    assert single == pytest.approx(native(url, text="warm soup"), abs=1e-6)
    content = {"inputs": ["the table", "warm soup"], "normalize": False, "dimensions": 3}
    vectors = answer(url + path, {**content, "prompt_name": None, "truncate": None, "model": "words"})
    assert vectors[1] == pytest.approx(native(url, text="warm soup", normalize=False)[:3], abs=1e-6)


def test_tei_cuts_long_texts_by_default_and_at_the_end_that_is_named(url: str) -> None:
    text = f"warm {LONG} wonderful"
    first = answer(f"{url}/embed", {"inputs": text})
    assert first == answer(f"{url}/embed", {"inputs": text, "truncation_direction": "Right"})
    assert first != answer(f"{url}/embed", {"inputs": text, "truncation_direction": "LEFT"})
    assert answer(f"{url}/predict", {"inputs": text, "truncate": True})
    bodies: dict[str, Json] = {
        "/embed": {"inputs": text},
        "/predict": {"inputs": text},
        "/rerank": {"query": QUERY, "texts": [text]},
    }
    refused = [post(url + path, {**body, "truncate": False}) for path, body in bodies.items()]
    assert [response.status_code for response in refused] == [422] * 3
    assert {response.json()["error_type"] for response in refused} == {"Validation"}


def test_tei_headers(url: str) -> None:
    response = post(f"{url}/embed", {"inputs": ["warm soup", "soup"]})
    headers = response.headers
    assert (headers["x-compute-type"], headers["x-compute-characters"]) == ("cpu", "13")
    tokens = answer(f"{url}/tokenize", {"inputs": ["warm soup", "soup"]})
    assert int(headers["x-compute-tokens"]) == sum(map(len, tokens))
    for name in ("x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"):
        assert headers[name].isdecimal()


def test_tei_similarity(url: str) -> None:
    content = {"source_sentence": "warm soup", "sentences": ["warm soup", "the table"]}
    scores = answer(f"{url}/similarity", {"inputs": content, "parameters": None})
    first, second = (np.array(native(url, text=text)) for text in ("warm soup", "the table"))
    assert scores == pytest.approx([1, float(first @ second)], abs=1e-5)


@pytest.mark.parametrize("raw", [False, True])
def test_tei_rerank(url: str, raw: bool) -> None:
    content = {"query": QUERY, "texts": DOCUMENTS, "raw_scores": raw}
    ranks = answer(f"{url}/rerank", {**content, "top_n": None, "return_text": True})
    assert [rank["index"] for rank in ranks] == ORDER
    assert [rank["text"] for rank in ranks] == [DOCUMENTS[index] for index in ORDER]
    assert all(0 <= rank["score"] <= 1 for rank in ranks) is not raw
    plain = [{"index": rank["index"], "score": rank["score"]} for rank in ranks]
    for top_n, count in ((None, 3), (0, 3), (1, 1), (9, 3)):
        found = answer(f"{url}/invocations", {**content, "model": "judge", "top_n": top_n})
        assert found == plain[:count]


def test_tei_predict(url: str) -> None:
    top = answer(f"{url}/predict/feelings?top_k=3", {"text": "wonderful"})["top"]
    one = answer(f"{url}/predict", {"inputs": "wonderful"})
    assert one == [{"label": each["label"], "score": each["probability"]} for each in top]
    batch = answer(f"{url}/predict", {"inputs": [["wonderful"], ["soup", "dull"]], "raw_scores": False})
    pair = answer(f"{url}/predict", {"inputs": ["soup", "dull"]})
    assert batch == [one, pair] != [one, one]
    ((score,),) = answer(f"{url}/predict", {"inputs": [[QUERY, DOCUMENTS[1]]], "model": "org/judge"})
    best = answer(f"{url}/rerank", {"query": QUERY, "texts": DOCUMENTS})[0]
    assert score == {"score": best["score"], "label": "LABEL_0"}


def test_infinitys_classify(url: str) -> None:
    texts = ["wonderful", "soup"]
    found = answer(f"{url}/classify", {"input": texts, "model": "feelings", "raw_scores": False})
    assert found["data"] == answer(f"{url}/predict", {"inputs": [[text] for text in texts]})
    assert (found["object"], found["model"]) == ("classify", "feelings")
    assert found["usage"]["prompt_tokens"] > 2
    assert answer(f"{url}/classify", {"input": "soup"})["data"] == found["data"][1:]
    wrong = post(f"{url}/classify", {"input": "soup", "raw_scores": True})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_request")


def test_the_native_predict_is_as_before(url: str, other_url: str) -> None:
    assert answer(f"{url}/predict", {"text": ['"inputs":', "soup"]})[1]["embedding"]
    wrong = post(f"{url}/predict", {"text": "soup", "more": {"inputs": "soup"}})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_request")
    assert post(f"{other_url}/predict/words", {"inputs": "soup"}).json()["code"] == "invalid_request"


def test_tei_tokens(url: str) -> None:
    text = "Wonderful soup 😀"
    (tokens,) = answer(f"{url}/tokenize", {"inputs": text, "prompt_name": None})
    assert [token["text"] for token in tokens] == ["[CLS]", "Wonderful", "soup", "😀", "[SEP]"]
    assert [token["special"] for token in tokens] == [True, False, False, False, True]
    assert [(token["start"], token["stop"]) for token in tokens[1:4]] == [(0, 9), (10, 14), (15, 16)]
    assert tokens[0]["start"] is None
    content = {"inputs": [text], "add_special_tokens": False, "model": "judge"}
    assert answer(f"{url}/tokenize", content)[0] == tokens[1:4]
    ids = [token["id"] for token in tokens]
    assert answer(f"{url}/decode", {"ids": ids[:3]}) == ["wonderful soup"]
    both = answer(f"{url}/decode", {"ids": [ids[:2], ids[2:3]], "skip_special_tokens": False})
    assert both == ["[CLS] wonderful", "soup"]
    metrics = requests.get(f"{url}/metrics", timeout=60).text.splitlines()
    counted = [line for line in metrics if "serving_requests_total{" in line and '"/tokenize"' in line]
    assert any('model="judge"' in line for line in counted)


def test_tei_info(url: str, other_url: str) -> None:
    info = requests.get(f"{url}/info", timeout=60).json()
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (info["model_id"], info["max_input_length"]) == ("words", MOST_TOKENS)
    assert (info["model_dtype"], info["auto_truncate"]) == ("float32", True)
    for name in ("max_concurrent_requests", "max_batch_tokens", "max_client_batch_size"):
        assert info[name] >= 1
    for path in ("/health", "/ping"):
        assert requests.get(url + path, timeout=60).status_code == 200
        assert requests.get(other_url + path, timeout=60).status_code == 404


# reranking by documents


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank(url: str, other_url: str, path: str) -> None:
    documents = [DOCUMENTS[0], {"text": DOCUMENTS[1]}, DOCUMENTS[2]]
    scores = {
        rank["index"]: rank["score"]
        for rank in answer(f"{url}/rerank", {"query": QUERY, "texts": DOCUMENTS})
    }
    for base, top_n in product((url, other_url), (None, 0, 2, 9)):
        content = {"query": QUERY, "documents": documents, "top_n": top_n, "max_tokens_per_doc": 4096}
        found = answer(base + path, {**content, "model": "org/judge", "return_documents": True})
        order = ORDER[: top_n or None]
        assert [each["index"] for each in found["results"]] == order
        assert [each["relevance_score"] for each in found["results"]] == [scores[i] for i in order]
        assert found["id"]
        if path == "/v2/rerank":
            assert found["meta"]["api_version"] == {"version": "2"}
            assert set(found["results"][0]) == {"index", "relevance_score"}
        else:
            assert [each["document"]["text"] for each in found["results"]] == [
                DOCUMENTS[i] for i in order
            ]
            assert found["model"] == "org/judge"
            assert found["usage"]["total_tokens"] > 0
    short = answer(url + path, {"query": QUERY, "documents": [LONG]})
    assert "document" not in short["results"][0]


@pytest.mark.parametrize("form", [{"top_k": 2}, {"top_k": None}, {"truncation": True}, {}])
@pytest.mark.parametrize("texts", [None, True])
def test_rerank_as_voyage(url: str, form: Json, texts: Json) -> None:
    content = {"query": QUERY, "documents": DOCUMENTS, "model": "judge", "return_documents": texts}
    found = answer(f"{url}/v1/rerank", {**content, **form})
    order = ORDER[: form.get("top_k")]
    assert found["usage"]["total_tokens"] > 0
    assert "object" not in found  # Infinity's client refuses others than its own
    scores = [each["relevance_score"] for each in found["results"]]
    expected = [{"index": i, "relevance_score": s} for i, s in zip(order, scores, strict=True)]
    if texts:
        expected = [{**each, "document": DOCUMENTS[each["index"]]} for each in expected]
    assert found["data"] == expected


def test_the_end_of_long_texts_that_vllm_names(url: str) -> None:
    texts = {"query": QUERY, "documents": [f"awful {LONG} wonderful"]}
    for side in ("left", "right"):
        more = {"truncation_side": side, "truncate_prompt_tokens": -1}
        fields = {"query": QUERY, "texts": texts["documents"], "truncation_direction": side}
        same = answer(f"{url}/predict/judge", {**fields, "truncate": True})["ranking"][0]["score"]
        (rank,) = answer(f"{url}/v1/rerank", {**texts, **more})["results"]
        (pair,) = answer(f"{url}/v1/score", {"queries": QUERY, **texts, **more})["data"]
        assert (rank["relevance_score"], pair["score"]) == (pytest.approx(same), pytest.approx(same))
        assert (same > 0.5) is (side == "left")


def test_ranking_of_nim(url: str, other_url: str) -> None:
    content = {"query": {"text": QUERY}, "passages": [{"text": text} for text in [*DOCUMENTS, LONG]]}
    same = {"query": QUERY, "documents": [*DOCUMENTS, LONG], "raw_scores": True}
    for base in (url, other_url):
        found = answer(f"{base}/v1/ranking", {**content, "model": "judge", "truncate": "END"})
        assert [(each["index"], each["logit"]) for each in found["rankings"]] == [
            (each["index"], each["relevance_score"])
            for each in answer(f"{base}/v1/rerank", same)["results"]
        ]


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed"])
@pytest.mark.parametrize("types", [None, ["float"]])
def test_coheres_embeddings(url: str, other_url: str, path: str, types: Json) -> None:
    content = {"texts": ["soup", LONG], "model": "words", "input_type": "search_query"}
    for base, dimensions in ((url, None), (other_url, 2)):
        more = {"embedding_types": types, "output_dimension": dimensions, "max_tokens": MOST_TOKENS}
        found = answer(base + path, {**content, **more})
        vectors = found["embeddings"]
        if types or path == "/v2/embed":
            assert found["response_type"] == "embeddings_by_type"
            vectors = vectors["float"]
        for text, vector in zip(content["texts"], vectors, strict=True):
            fields = {"text": f"warm {text}", "truncate": True, "normalize": True}
            expected = native(url, **fields, dimensions=dimensions)
            assert vector == pytest.approx(expected, abs=1e-6)
        assert found["texts"] == content["texts"]
        assert found["meta"]["billed_units"] == {"input_tokens": 4 + MOST_TOKENS}


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_score(url: str, path: str) -> None:
    def scores(**content: Json) -> list[float]:
        found = answer(url + path, content)
        assert [(each["index"], each["object"]) for each in found["data"]] == [
            (index, "score") for index in range(len(found["data"]))
        ]
        return [each["score"] for each in found["data"]]

    one_by_one = [
        answer(f"{url}/rerank", {"query": QUERY, "texts": [text]})[0]["score"] for text in DOCUMENTS
    ]
    assert scores(text_1=QUERY, text_2=DOCUMENTS) == one_by_one
    assert scores(queries=[QUERY] * 3, documents=DOCUMENTS) == one_by_one
    assert scores(text_1=[QUERY], text_2=DOCUMENTS[0], model="judge") == one_by_one[:1]
    assert scores(text_1=QUERY, text_2="") == scores(queries=QUERY, documents=["", "soup"])[:1]
    ranks = answer(f"{url}/rerank", {"query": QUERY, "texts": [LONG]})
    for tokens in (-1, MOST_TOKENS):
        assert scores(text_1=QUERY, text_2=LONG, truncate_prompt_tokens=tokens) == [ranks[0]["score"]]
    for more in ({}, {"truncate_prompt_tokens": None}, {"truncate_prompt_tokens": MOST_TOKENS - 1}):
        refused = requests.post(url + path, json={"text_1": QUERY, "text_2": LONG, **more}, timeout=20)
        assert refused.status_code == 400


@pytest.mark.parametrize(
    ("fields", "is_raw"),
    [
        ({"raw_scores": True}, True),
        ({"use_activation": False}, True),
        ({"activation": False}, True),
        ({"raw_scores": False, "use_activation": True, "activation": None}, False),
    ],
)
def test_raw_scores_of_documents(url: str, fields: Json, is_raw: bool) -> None:
    ranks = answer(f"{url}/rerank", {"query": QUERY, "texts": DOCUMENTS, "raw_scores": is_raw})
    expected = [rank["score"] for rank in ranks]
    found = answer(f"{url}/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, **fields})
    assert [each["relevance_score"] for each in found["results"]] == expected
    scores = answer(f"{url}/score", {"text_1": QUERY, "text_2": DOCUMENTS, **fields})["data"]
    assert sorted((each["score"] for each in scores), reverse=True) == expected


# Ollama


@pytest.mark.parametrize("name", ["words", "words:latest", f"{ALIAS}:latest", None])
def test_ollama_embed(url: str, name: str | None) -> None:
    texts = [f"table {LONG}", "warm soup"]
    more = {"options": {"num_ctx": 8}, "keep_alive": "5m", "truncate": None}
    found = answer(f"{url}/api/embed", {"model": name, "input": texts, "dimensions": 2, **more})
    assert (found["model"], found["load_duration"]) == (name or "words", 0)
    assert found["total_duration"] > 0
    assert found["prompt_eval_count"] == MOST_TOKENS + 4
    for text, vector in zip(texts, found["embeddings"], strict=True):
        same = native(url, text=text, dimensions=2, normalize=True, truncate=True)
        assert vector == pytest.approx(same, abs=1e-6)
    (alone,) = answer(f"{url}/api/embed", {"input": "soup", "dimensions": 0})["embeddings"]
    assert alone == pytest.approx(native(url, text="soup"), abs=1e-6)


def test_ollamas_first_path_returns_the_vector_as_the_network_has_it(url: str) -> None:
    for text in ("warm soup", f"table {LONG}"):
        found = answer(f"{url}/api/embeddings", {"model": "words:latest", "prompt": text})
        same = native(url, text=text, normalize=False, truncate=True)
        assert found == {"embedding": pytest.approx(same, abs=1e-6)}
        assert np.linalg.norm(same) != pytest.approx(1, abs=0.1)


def test_ollama_lists_the_models_for_embeddings(url: str) -> None:
    models = requests.get(f"{url}/api/tags", timeout=60).json()["models"]
    assert [model["name"] for model in models] == ["words:latest", f"{ALIAS}:latest"]
    for model in models:
        assert model["model"] == model["name"]
        assert model["details"]["quantization_level"] == "fp32"
        assert model["modified_at"].endswith("+00:00")
        for field in ("model", "name"):
            shown = answer(f"{url}/api/show", {field: model["name"], "verbose": True})
            assert shown["capabilities"] == ["embedding"]
            info = shown["model_info"]
            family = info["general.architecture"]
            assert info[f"{family}.context_length"] == MOST_TOKENS
            assert info[f"{family}.embedding_length"] == DIMENSIONS
    assert requests.get(f"{url}/api/version", timeout=60).json() == {"version": __version__}


# Weaviate


@pytest.mark.parametrize("task", [("query", "warm "), ("passage", "table "), (None, "")])
def test_weaviates_container(url: str, task: tuple[str | None, str]) -> None:
    config = {"pooling_strategy": "masked_mean", "task_type": task[0], "dimensions": 2}
    texts = ["soup", f"table {LONG}"]
    same = [
        native(url, text=task[1] + text, truncate=True, normalize=True, dimensions=2) for text in texts
    ]
    for text, vector in zip(texts, same, strict=True):
        empty = {"dims": 0, "vector": None, "error": ""}  # which the database sends, too
        found = answer(f"{url}/vectors", {"text": text, "config": config, **empty})
        assert found == {"text": text, "vector": pytest.approx(vector, abs=1e-6), "dim": 2}
    several = answer(f"{url}/vectors", {"texts": texts, "config": config})
    assert several == {"vectors": [pytest.approx(each, abs=1e-6) for each in same], "dims": 2}
    assert answer(f"{url}/vectors", {"text": "soup", "config": None})["dim"] == DIMENSIONS


def test_what_weaviate_asks_at_its_start(url: str) -> None:
    for path in ("/.well-known/live", "/.well-known/ready"):
        response = requests.get(url + path, timeout=60)
        assert (response.status_code, response.content) == (204, b"")
    assert requests.get(f"{url}/meta", timeout=60).json()["model_id"] == "words"


# all of them

DATA_URL = "data:image/png;base64,AAAA"
REFUSED: list[tuple[str, Json, int, str]] = [
    *(
        ("/v1/embeddings", {"input": "soup", "model": "words", **change}, status, code)
        for change, status, code in (
            ({"model": "nobody"}, 404, "model_not_found"),
            ({"model": "judge"}, 400, "wrong_task"),
            ({"model": "words_tensor"}, 400, "wrong_task"),
            ({"input": ""}, 400, "invalid_text"),
            ({"input": []}, 400, "invalid_request"),
            ({"input": None}, 400, "invalid_request"),
            ({"input": ["soup"] * 2049}, 400, "invalid_request"),
            ({"input": [{"image": "x"}]}, 400, "invalid_request"),
            ({"output_dtype": "int8"}, 400, "invalid_request"),
            ({"embedding_type": ["float", "binary"]}, 400, "invalid_request"),
            ({"encoding_type": "ubinary"}, 400, "invalid_request"),
            ({"late_chunking": True}, 400, "invalid_request"),
            ({"return_multivector": True}, 400, "invalid_request"),
            ({"add_special_tokens": False}, 400, "invalid_request"),
            ({"embed_dtype": "bfloat16"}, 400, "invalid_request"),
            ({"endianness": "big"}, 400, "invalid_request"),
            ({"modality": "image"}, 400, "invalid_request"),
            ({"input": DATA_URL}, 400, "invalid_text"),
            ({"images": [DATA_URL]}, 400, "invalid_request"),
            ({"messages": []}, 400, "invalid_request"),
            ({"input": [{"text": "soup", "image": "x"}]}, 400, "invalid_request"),
            ({"prompt_name": "nothing"}, 400, "invalid_request"),
            ({"truncation_side": "middle"}, 400, "invalid_request"),
            ({"input": [1, 2]}, 400, "invalid_request"),
            ({"input": [[1, 2], [3]]}, 400, "invalid_request"),
            ({"input": ["soup", [1]]}, 400, "invalid_request"),
            ({"input": ["soup", 1]}, 400, "invalid_request"),
            ({"input": LONG}, 400, "context_length_exceeded"),
            ({"dimensions": -1}, 400, "invalid_request"),
            ({"dimensions": DIMENSIONS + 1}, 400, "invalid_request"),
            ({"dimensions": 2.5}, 400, "invalid_request"),
            ({"encoding_format": "hex"}, 400, "invalid_request"),
            ({"embedding_type": "binary"}, 400, "invalid_request"),
            ({"output_dimension": DIMENSIONS + 1}, 400, "invalid_request"),
            ({"input": LONG, "truncation": False}, 400, "context_length_exceeded"),
            ({"truncate_prompt_tokens": MOST_TOKENS - 1}, 400, "invalid_request"),
            ({"truncate": "MIDDLE"}, 400, "invalid_request"),
            ({"input": LONG, "truncate": "NONE"}, 400, "context_length_exceeded"),
        )
    ),
    ("/embed", {"inputs": []}, 422, "Validation"),
    ("/embed", {"inputs": ""}, 400, "Empty"),
    ("/embed", {"inputs": ["soup"] * 4097}, 422, "Validation"),
    ("/embed", {"inputs": "soup", "model": "judge"}, 424, "Backend"),
    ("/embed", {"inputs": "soup", "model": "x"}, 404, "Validation"),
    ("/embed", {"input": "soup"}, 422, "Validation"),
    ("/embed", {"inputs": DATA_URL}, 400, "Empty"),
    ("/embed", {"inputs": "soup", "images": [DATA_URL]}, 422, "Validation"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [DATA_URL]}}, 400, "Empty"),
    ("/rerank", {"query": QUERY}, 422, "Validation"),
    ("/rerank", {"query": QUERY, "texts": []}, 422, "Validation"),
    ("/rerank", {"query": "", "texts": ["soup"]}, 400, "Empty"),
    ("/rerank", {"query": QUERY, "texts": ["soup"], "model": "words"}, 424, "Backend"),
    ("/predict", {"inputs": ["a", "b", "c"]}, 422, "Validation"),
    ("/predict", {"inputs": [[]]}, 422, "Validation"),
    ("/predict", {"inputs": "soup", "raw_scores": True}, 422, "Validation"),
    ("/predict", {"inputs": "soup", "model": "judge"}, 422, "Validation"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [""]}}, 400, "Empty"),
    ("/tokenize", {"inputs": "soup", "prompt_name": "x"}, 422, "Validation"),
    ("/tokenize", {"inputs": "soup " * 60_000}, 422, "Validation"),
    ("/decode", {"ids": [10**6]}, 422, "Validation"),
    ("/decode", {"ids": [1, [2]]}, 422, "Validation"),
    ("/decode", {"ids": [[1], 2]}, 422, "Validation"),
    ("/embed_sparse", {"inputs": "soup"}, 424, "Backend"),
    ("/embed_all", {"inputs": "soup"}, 424, "Backend"),
    ("/v1/rerank", {"query": QUERY, "documents": []}, 400, ""),
    ("/v1/rerank", {"query": QUERY, "documents": [{"image": "x"}]}, 400, ""),
    ("/v2/rerank", {"query": " ", "documents": DOCUMENTS}, 400, ""),
    ("/v2/rerank", {"query": QUERY, "documents": ["a"], "model": "x"}, 404, ""),
    ("/rerank", {"query": QUERY, "documents": ["a"], "top_n": -1}, 400, ""),
    ("/rerank", {"query": QUERY, "texts": ["a"], "top_n": -1}, 422, "Validation"),
    ("/v1/ranking", {"query": {"text": QUERY}, "passages": []}, 400, ""),
    ("/v1/ranking", {"query": {"text": QUERY}, "passages": [{"text": LONG}]}, 400, ""),
    ("/v1/ranking", {"query": QUERY, "passages": ["a"]}, 400, ""),
    ("/v1/ranking", {"query": {"text": QUERY}, "passages": [{"text": "a", "image": "b"}]}, 400, "image"),
    ("/v1/rerank", {"query": QUERY, "documents": ["a"], "top_k": -1}, 400, ""),
    ("/v1/rerank", {"query": QUERY, "documents": ["a"], "top_k": 1, "top_n": 2}, 400, ""),
    ("/v1/rerank", {"query": QUERY, "documents": [LONG], "truncation": False}, 400, ""),
    ("/rerank", {"query": QUERY, "documents": ["a"], "model": "words"}, 400, ""),
    ("/v1/rerank", {"query": QUERY, "documents": [{"text": "a"}], "rank_fields": ["title"]}, 400, ""),
    ("/classify", {"input": "http://example/photo.jpg", "modality": "image"}, 400, ""),
    ("/v1/embed", {"texts": []}, 400, ""),
    ("/v2/embed", {"texts": ["soup", ""]}, 400, ""),
    ("/v2/embed", {"texts": ["soup"], "embedding_types": ["int8"]}, 400, ""),
    ("/v2/embed", {"texts": [DATA_URL]}, 400, ""),
    *(("/v2/embed", {"texts": ["soup"], name: [DATA_URL]}, 400, "") for name in ("images", "inputs")),
    ("/v2/embed", {"texts": [LONG], "truncate": "NONE"}, 400, ""),
    ("/v2/embed", {"texts": ["soup"], "max_tokens": MOST_TOKENS - 1}, 400, ""),
    ("/v2/embed", {"texts": ["soup"], "model": "judge"}, 400, ""),
    ("/score", {"text_1": QUERY}, 400, ""),
    ("/score", {"text_1": [QUERY, QUERY], "text_2": DOCUMENTS}, 400, ""),
    ("/score", {"text_1": [], "text_2": []}, 400, ""),
    ("/v1/score", {"text_1": QUERY, "text_2": LONG}, 400, ""),
    ("/api/embed", {"input": "soup", "model": "nobody:latest"}, 404, ""),
    ("/api/embed", {"input": "soup", "model": "words:small"}, 404, ""),
    ("/api/embed", {"input": "soup", "model": "judge"}, 400, ""),
    ("/api/embed", {"input": LONG, "truncate": False}, 400, ""),
    ("/api/embed", {"input": "soup", "dimensions": DIMENSIONS + 1}, 400, ""),
    ("/api/embed", {"input": "soup", "dimensions": -1}, 400, ""),
    ("/api/embed", {"input": [1, 2]}, 400, ""),
    ("/api/embed", {"input": []}, 400, ""),
    ("/api/embed", {"input": ["soup", ""]}, 400, ""),
    ("/api/embed", {"prompt": "soup"}, 400, ""),
    ("/api/embed", {"input": ["soup", DATA_URL]}, 400, ""),
    ("/api/embed", {"input": "soup", "images": [DATA_URL]}, 400, ""),
    ("/api/embeddings", {"prompt": DATA_URL}, 400, ""),
    ("/api/embeddings", {"prompt": "soup", "images": [DATA_URL]}, 400, ""),
    ("/api/embeddings", {"prompt": ""}, 400, ""),
    ("/api/embeddings", {"input": "soup"}, 400, ""),
    ("/api/show", {"model": "judge"}, 400, ""),
    ("/api/show", {"model": "nobody"}, 404, ""),
    ("/vectors", {"text": ""}, 400, ""),
    ("/vectors", {"text": None, "config": None}, 400, ""),
    ("/vectors", {"texts": []}, 400, ""),
    ("/vectors", {"texts": ["soup", ""]}, 400, ""),
    ("/vectors", {"text": "soup", "config": {"dimensions": DIMENSIONS + 1}}, 400, ""),
    ("/vectors", {"text": "soup", "model": "judge"}, 400, ""),
    ("/vectors", {"text": DATA_URL}, 400, ""),
    ("/vectors", {"texts": ["soup"], "images": [DATA_URL]}, 400, ""),
    ("/api/chat", {"model": "words", "messages": []}, 404, ""),
    ("/api/generate", {"model": "words", "prompt": "soup"}, 404, ""),
    ("/api/pull", {"model": "words"}, 404, ""),
]
"""Path, body, status, and the code or type of the error, where the protocol has one."""


@pytest.mark.parametrize(("path", "content", "status", "kind"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(url: str, path: str, content: Json, status: int, kind: str) -> None:
    response = post(url + path, content)
    assert response.status_code == status, response.text
    error = response.json()
    if "error_type" in error:
        assert set(error) == {"error", "error_type"}
        assert error["error_type"] == kind
    elif path in ("/v2/rerank", "/v1/embed", "/v2/embed"):
        assert set(error) == {"id", "message"}
    elif path.startswith(("/api/", "/vectors")):
        assert set(error) == {"error"}
        assert isinstance(error["error"], str)
    else:
        assert set(error) == {"error", "detail"}
        assert error["error"]["message"] == error["detail"]
        if path == "/v1/embeddings":
            assert set(error["error"]) == {"message", "type", "param", "code"}
            assert (error["error"]["code"], error["error"]["type"]) == (kind, "invalid_request_error")


TOGETHER = {"query": QUERY, "texts": DOCUMENTS}
CLIENTS: dict[str, dict[str, Json]] = {
    "/v1/embeddings": {
        "Dify": {"input": ["soup"], "model": ALIAS, "encoding_format": "float"},
        "Continue": {"input": ["soup", "warm"], "model": ALIAS},
        "RAGFlow": {"input": ["a"], "model": ALIAS, "encoding_format": "float", "drop_params": True},
        "vLLM": {
            "input": "a",
            "model": ALIAS,
            "truncate_prompt_tokens": -1,
            "priority": 0,
            "user": None,
        },
    },
    "/embeddings": {"open-webui": {"input": ["soup"], "model": ALIAS}},
    "/rerank": {
        "Dify": TOGETHER,
        "Continue": {**TOGETHER, "return_text": False, "truncation_direction": "Right"},
        "RAGFlow": {**TOGETHER, "raw_scores": False, "truncate": True},
        "Elasticsearch": {**TOGETHER, "return_text": True, "top_n": 2},
    },
    "/v1/rerank": {
        "Dify": {"model": "judge", "query": QUERY, "documents": DOCUMENTS, "return_documents": True},
        "open-webui": {"model": "judge", "query": QUERY, "documents": DOCUMENTS, "top_n": 3},
    },
}
"""Path -> clients, each with the body that it sends."""


@pytest.mark.parametrize("key", ["", "Bearer", "Bearer ", "Bearer None", "Bearer EMPTY"])
def test_bodies_and_headers_of_known_clients(url: str, key: str) -> None:
    for path, bodies in CLIENTS.items():
        for content in bodies.values():
            assert answer(url + path, content, Authorization=key)


def test_the_model_that_is_called_without_a_name(url: str, other_url: str) -> None:
    for base in (url, other_url):
        assert answer(f"{base}/v1/embeddings", {"input": "soup", "model": ""})["model"] == "words"
        assert answer(f"{base}/v1/rerank", {"query": "a", "documents": ["b"]})["model"] == "judge"
    assert len(answer(f"{url}/", {"inputs": "soup"})[0]) == DIMENSIONS
    assert answer(f"{url}/", {"inputs": "warm", "model": "feelings"})[0]["label"] == "POSITIVE"


def test_a_compressed_body_that_names_its_model(url: str) -> None:
    body = gzip.compress(json.dumps({"input": "soup", "model": ALIAS}).encode())
    headers = {"Content-Encoding": "gzip"}
    response = requests.post(f"{url}/v1/embeddings", data=body, headers=headers, timeout=60)
    assert response.json()["model"] == ALIAS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "name", "more"),
    [
        ("/v1/embeddings", "input", {}),
        ("/tokenize", "inputs", {}),
        ("/score", "text_2", {"text_1": "a"}),
        ("/api/embed", "input", {}),
    ],
)
def test_many_long_texts_hold_up_nobody_for_long(url: str, path: str, name: str, more: Json) -> None:
    response = post(
        url + path, {**more, name: [f"{number} " + "soup " * 1600 for number in range(2048)]}
    )
    assert response.status_code in {200, *range(400, 500), 504}, response.text[:300]
    assert answer(f"{url}/v1/embeddings", {"input": "soup"})
