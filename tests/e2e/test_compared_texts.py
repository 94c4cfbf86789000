"""The client, `smallplates ask` and `smallplates load` with an embedding model and a reranker."""

import asyncio
import re

import pytest
from typer.testing import CliRunner

from smallplates.cli.ask import app
from smallplates.client import AsyncClient, Client, Embeddings, RequestRefusedError
from tests.e2e.tasks import Service

pytestmark = pytest.mark.slow

TEXTS = ["awful bread", "wonderful and warm", "the soup"]
BEST_FIRST = [1, 2, 0]


def test_the_client(tasks: Service) -> None:
    with Client(tasks.url) as client:
        found = client.embed(TEXTS, model="vectors")
        assert [len(vector) for vector in found.vectors] == [4, 4, 4]
        alone = client.embed(TEXTS[1], dimensions=2, normalize=True, model="vectors").vectors[0]
        assert alone == pytest.approx(unit(found.vectors[1][:2]), abs=1e-5)
        ranks = client.rerank("warm", TEXTS, model="ranker").ranking
        assert [rank.index for rank in ranks] == BEST_FIRST
        assert [rank.text for rank in ranks] == [TEXTS[index] for index in BEST_FIRST]
        raw = client.rerank("warm", TEXTS, raw_scores=True, top_k=1, model="ranker").ranking
        assert [rank.index for rank in raw] == BEST_FIRST[:1]
        assert raw[0].score != ranks[0].score
        with pytest.raises(RequestRefusedError, match="dimensions"):
            client.embed(TEXTS, dimensions=5, model="vectors")

    async def embed() -> Embeddings:
        async with AsyncClient(tasks.url) as client:
            return await client.embed(TEXTS, model="vectors")

    assert asyncio.run(embed()).vectors == found.vectors


def unit(vector: list[float]) -> list[float]:
    """The vector with length 1."""
    length = sum(number * number for number in vector) ** 0.5
    return [number / length for number in vector]


@pytest.mark.parametrize("wire", ["http", "tcp"])
def test_the_command(tasks: Service, wire: str) -> None:
    address = ["--url", tasks.url if wire == "http" else f"tcp://127.0.0.1:{tasks.tcp_port}"]
    embed = ["--model", "vectors", *address]
    vectors = CliRunner().invoke(app, ["--embed", *TEXTS[:2], *embed])
    assert vectors.exit_code == 0
    numbers = r"4 numbers(, -?\d\.\d{4}){3} \.\.\. \([\d.]+ ms\)"
    for line, text in zip(vectors.output.splitlines(), TEXTS[:2], strict=True):
        assert re.fullmatch(f"{text}: {numbers}", line), line
    ask = ["--rerank", "warm", *TEXTS, "--model", "ranker", *address]
    head, *lines = CliRunner().invoke(app, ask).output.splitlines()
    assert re.fullmatch(r"warm \([\d.]+ ms\)", head)
    assert [line.split(maxsplit=1)[1] for line in lines] == [TEXTS[index] for index in BEST_FIRST]
    scores = [float(line.split()[0]) for line in lines]
    assert scores == sorted(scores, reverse=True)
    best = CliRunner().invoke(app, [*ask, "--top-k", "1"]).output
    assert best.splitlines()[1:] == lines[:1]
    refused = CliRunner().invoke(app, ["--embed", "", *embed])
    assert refused.exit_code == 1
    assert "the text is empty" in refused.output + refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--embed"], ["--rerank", "warm"], ["--embed", "--rerank", "warm", "text"]),
        *(["--embed", "a", "--text", "b"], ["photo.jpg", "--text", "b"], ["a", "--json", "{}"]),
    ],
)
def test_arguments_that_contradict_each_other(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "--embed" in result.output + result.stderr
