"""The client, `smallplates ask` and `smallplates load` with an embedding model and a reranker."""

import asyncio
import re
from collections.abc import Iterator

import pytest
import requests
from typer.testing import CliRunner

from smallplates.cli.ask import app
from smallplates.cli.load.payloads import Protocol
from smallplates.cli.load.target import Target
from smallplates.client import AsyncClient, Client, Embeddings, RequestRefusedError
from tests import exports, servers

pytestmark = pytest.mark.slow

TEXTS = ["awful bread", "wonderful and warm", "the soup"]
BEST_FIRST = [1, 2, 0]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The service's addresses, over HTTP and TCP; the embedding model is the default."""
    folder = tmp_path_factory.mktemp("texts")
    exports.encoded(folder / "meanings", exports.word_piece(), {})
    exports.ranked(folder / "search", exports.word_piece(), {})
    models = ",".join(str(folder / name) for name in ("meanings", "search"))
    port = servers.free_port()
    settings = {"SERVING_MODELS": models, "SERVING_TCP_PORT": str(port)}
    with servers.api("fastapi_onnx", settings | servers.UNMEASURED) as url:
        yield url, f"tcp://127.0.0.1:{port}"


def test_the_client(addresses: tuple[str, str]) -> None:
    url, _ = addresses
    with Client(url) as client:
        found = client.embed(TEXTS)
        assert [len(vector) for vector in found.vectors] == [4, 4, 4]
        alone = client.embed(TEXTS[1], dimensions=2, normalize=True, model="meanings").vectors[0]
        assert alone == pytest.approx(unit(found.vectors[1][:2]), abs=1e-5)
        ranks = client.rerank("warm", TEXTS, model="search").ranking
        assert [rank.index for rank in ranks] == BEST_FIRST
        assert [rank.text for rank in ranks] == [TEXTS[index] for index in BEST_FIRST]
        raw = client.rerank("warm", TEXTS, raw_scores=True, top_k=1, model="search").ranking
        assert [rank.index for rank in raw] == BEST_FIRST[:1]
        assert raw[0].score != ranks[0].score
        with pytest.raises(RequestRefusedError, match="dimensions"):
            client.embed(TEXTS, dimensions=5)

    async def embed() -> Embeddings:
        async with AsyncClient(url) as client:
            return await client.embed(TEXTS)

    assert asyncio.run(embed()).vectors == found.vectors


def unit(vector: list[float]) -> list[float]:
    """The vector with length 1."""
    length = sum(number * number for number in vector) ** 0.5
    return [number / length for number in vector]


@pytest.mark.parametrize("protocol", [0, 1], ids=["http", "tcp"])
def test_the_command(addresses: tuple[str, str], protocol: int) -> None:
    address = ["--url", addresses[protocol]]
    vectors = CliRunner().invoke(app, ["--embed", *TEXTS[:2], *address])
    assert vectors.exit_code == 0
    numbers = r"4 numbers(, -?\d\.\d{4}){3} \.\.\. \([\d.]+ ms\)"
    for line, text in zip(vectors.output.splitlines(), TEXTS[:2], strict=True):
        assert re.fullmatch(f"{text}: {numbers}", line), line
    ask = ["--rerank", "warm", *TEXTS, "--model", "search", *address]
    head, *lines = CliRunner().invoke(app, ask).output.splitlines()
    assert re.fullmatch(r"warm \([\d.]+ ms\)", head)
    assert [line.split(maxsplit=1)[1] for line in lines] == [TEXTS[index] for index in BEST_FIRST]
    scores = [float(line.split()[0]) for line in lines]
    assert scores == sorted(scores, reverse=True)
    best = CliRunner().invoke(app, [*ask, "--top-k", "1"]).output
    assert best.splitlines()[1:] == lines[:1]
    refused = CliRunner().invoke(app, ["--embed", "", *address])
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


@pytest.mark.parametrize("protocol", ["json", "raw", "v2", "v2-raw", "torchserve"])
@pytest.mark.parametrize("model", ["meanings", "search"])
def test_the_load_is_the_models_example(addresses: tuple[str, str], model: str, protocol: str) -> None:
    (payload,) = Target(addresses[0], [], Protocol(protocol), model=model).payloads()
    url = f"{addresses[0]}{payload.path}"
    answer = requests.post(url, data=payload.body, headers=payload.headers, timeout=30)
    assert answer.status_code == 200, answer.text
