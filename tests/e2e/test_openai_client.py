"""OpenAI's own client for Python, unmodified."""

from collections.abc import Iterator

import numpy as np
import openai
import pytest

from tests import text_service
from tests.text_service import ALIAS, DIMENSIONS

TEXTS = ["the soup was warm", "the table"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("texts")
    with (
        text_service.running(folder, SERVING_API_KEY="guest") as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="guest", max_retries=0) as client,
    ):
        yield client


def test_floats_and_base64_have_the_same_vectors(client: openai.OpenAI) -> None:
    usual = client.embeddings.create(input=TEXTS, model=ALIAS)  # asks for base64, and decodes it
    floats = client.embeddings.create(input=TEXTS, model=ALIAS, encoding_format="float")
    for row, numbers in zip(usual.data, floats.data, strict=True):
        assert len(row.embedding) == DIMENSIONS
        assert numbers.embedding == pytest.approx(row.embedding)
    assert usual.usage == floats.usage
    assert usual.model == ALIAS


@pytest.mark.anyio
async def test_the_asynchronous_client(client: openai.OpenAI) -> None:
    async with openai.AsyncOpenAI(base_url=client.base_url, api_key="guest") as other:
        answer = await other.embeddings.create(input=TEXTS[0], model="words", dimensions=2)
    assert np.linalg.norm(answer.data[0].embedding) == pytest.approx(1)
    assert len(answer.data[0].embedding) == 2


def test_the_models(client: openai.OpenAI) -> None:
    assert {"words", "judge", ALIAS} <= {model.id for model in client.models.list()}
    assert client.models.retrieve(ALIAS).owned_by == "smallplates"


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.embeddings.create(input=TEXTS, model="nobody")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        client.embeddings.create(input=[[9906, 1917]], model=ALIAS)
    with (
        openai.OpenAI(base_url=client.base_url, api_key="wrong") as stranger,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        stranger.embeddings.create(input=TEXTS, model=ALIAS)
    assert refused.value.code == "invalid_api_key"
