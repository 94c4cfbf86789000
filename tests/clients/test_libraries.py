"""Libraries for embeddings and reranking, unmodified: each is told only where the service is."""

import asyncio
import json
import sys
from pathlib import Path

import cohere
import ollama
import openai
import pytest
import requests
from haystack import Document
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from langchain_openai import AzureOpenAIEmbeddings, OpenAIEmbeddings
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

from tests import servers
from tests.text_service import ALIAS

TEXTS = ["the soup was warm", "the table"]
QUERY, DOCUMENTS = "the soup", ["awful and dull", "wonderful and warm", "the table"]
ORDER = [1, 2, 0]
SCRIPT = """
const OpenAI = require("openai");
const client = new OpenAI({ baseURL: process.argv[1] + "/v1", apiKey: "EMPTY" });
client.embeddings.create({ model: process.argv[2], input: JSON.parse(process.argv[3]) })
    .then((answer) => console.log(JSON.stringify(answer.data.map((row) => row.embedding))));
"""


@pytest.fixture(scope="session")
def vectors(url: str) -> list[list[float]]:
    content = requests.post(f"{url}/predict/words", json={"text": TEXTS}, timeout=60).json()
    return [row["embedding"] for row in content]


def test_openai_for_node(url: str, vectors: list[list[float]]) -> None:
    """It asks for base64 unless its user names a format."""
    env = {"NODE_PATH": str(Path(sys.prefix) / "node_modules")}
    result = servers.run("node", "-e", SCRIPT, url, ALIAS, json.dumps(TEXTS), env=env)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [pytest.approx(vector, abs=1e-6) for vector in vectors]


def test_langchain(url: str, vectors: list[list[float]]) -> None:
    options = {"base_url": f"{url}/v1", "api_key": "EMPTY", "model": ALIAS}
    texts = OpenAIEmbeddings(**options, check_embedding_ctx_length=False)
    assert texts.embed_documents(TEXTS) == [pytest.approx(vector, abs=1e-6) for vector in vectors]
    assert texts.embed_query(TEXTS[0]) == pytest.approx(vectors[0], abs=1e-6)


def test_langchain_with_azure(url: str, vectors: list[list[float]]) -> None:
    options = {"azure_endpoint": url, "api_key": "EMPTY", "api_version": "2024-10-21"}
    texts = AzureOpenAIEmbeddings(**options, model=ALIAS, check_embedding_ctx_length=False)
    assert texts.embed_documents(TEXTS) == [pytest.approx(vector, abs=1e-6) for vector in vectors]


def test_ollama(url: str, vectors: list[list[float]]) -> None:
    client = ollama.Client(url)
    answer = client.embed(model="words:latest", input=TEXTS, options={"num_ctx": 512}, keep_alive=0)
    assert answer.embeddings == [pytest.approx(vector, abs=1e-6) for vector in vectors]
    assert client.embeddings(model="words", prompt=TEXTS[0]).embedding
    (model, _) = client.list().models
    assert (model.model, client.show("words").capabilities) == ("words:latest", ["embedding"])
    for call in (client.embed, client.chat, client.pull):
        with pytest.raises(ollama.ResponseError) as unknown:
            call("nobody")
        assert unknown.value.status_code == 404


def test_langchains_default_fails_and_says_what_to_do(url: str) -> None:
    class Bytes:
        """Stands for tiktoken's encoding, whose file would have to be downloaded."""

        def encode(self, text: str, **_: object) -> list[int]:
            return [*text.encode()]

        encode_ordinary = encode

    ids = OpenAIEmbeddings(base_url=f"{url}/v1", api_key="EMPTY", model=ALIAS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiktoken.encoding_for_model", lambda _: Bytes())
        patch.setattr("tiktoken.get_encoding", lambda _: Bytes())
        with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
            ids.embed_documents(TEXTS)


def test_llama_index(url: str, vectors: list[list[float]]) -> None:
    client = TextEmbeddingsInference(
        model_name="words", base_url=url, text_instruction=" ", query_instruction=" "
    )
    assert client.get_text_embedding_batch(TEXTS) == [pytest.approx(v, abs=1e-6) for v in vectors]
    assert asyncio.run(client.aget_query_embedding(TEXTS[0])) == pytest.approx(vectors[0], abs=1e-6)


def test_haystack(url: str) -> None:
    ranker = HuggingFaceTEIRanker(url=url, token=None, top_k=2)
    found = ranker.run(QUERY, [Document(content=text) for text in DOCUMENTS])["documents"]
    assert [each.content for each in found] == [DOCUMENTS[index] for index in ORDER[:2]]
    assert found[0].score > found[1].score


def test_cohere(url: str, vectors: list[list[float]]) -> None:
    client = cohere.ClientV2(api_key="EMPTY", base_url=url)
    answer = client.rerank(model="judge", query=QUERY, documents=DOCUMENTS, top_n=2)
    assert [each.index for each in answer.results] == ORDER[:2]
    embeddings = client.embed(
        model=ALIAS, texts=TEXTS, input_type="classification", embedding_types=["float"]
    ).embeddings
    assert embeddings.float_ == [pytest.approx(vector, abs=1e-6) for vector in vectors]
    first = cohere.Client(api_key="EMPTY", base_url=url)
    assert first.embed(model=ALIAS, texts=TEXTS).embeddings == embeddings.float_
    with pytest.raises(cohere.errors.NotFoundError) as unknown:
        client.rerank(model="nobody", query=QUERY, documents=DOCUMENTS)
    assert "nobody" in unknown.value.body["message"]
