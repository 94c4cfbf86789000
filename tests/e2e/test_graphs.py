"""Graphs in tensor form on ONNX Runtime, from the file to the answer, through a real worker."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from fastapi_onnx import BACKEND
from smallplates.engine.client import EngineClient, ItemResult
from smallplates.errors import InvalidTensorError
from smallplates.models.tensors import Array
from smallplates.settings import Settings
from smallplates.supervision.planner import planner
from tests import graphs
from tests.e2e.services import local_engine
from tests.graphs import model, node, value

pytestmark = pytest.mark.anyio


class Engine:
    """A graph's engine."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        (self.signature,) = client.memory.layout.signatures

    async def ask(self, *batch: Array, seconds: float = 30) -> list[ItemResult]:
        """The outcomes of a batch, an array for each input."""
        items = self.signature.items(batch)
        with self.client.acquire(count=len(items)) as slots:
            await slots.submit(0, items, time.monotonic() + seconds, False)
            return await slots.results()

    @property
    def executions(self) -> dict[int, int]:
        """How many batches there were of each size."""
        by_batch_size = self.client.statistics.by_batch_size(0)
        return {size: batch.executions for size, batch in by_batch_size.items()}


@asynccontextmanager
async def served(
    monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: str
) -> AsyncIterator[Engine]:
    """An engine of one worker for the graph in a folder."""
    named = {"model_dir": str(folder), "instances": "1", "log_level": "error", "queue_size": "32"}
    for name, chosen in {**named, "max_queue_delay_us": "100000", **settings}.items():
        monkeypatch.setenv(f"SERVING_{name.upper()}", chosen)
    async with local_engine(Settings(), planner(BACKEND, Settings())) as handle:
        client = EngineClient(handle.fds, lambda *_: None)
        client.open()
        try:
            yield Engine(client)
            await asyncio.wait_for(client.drain(), 60)
        finally:
            client.close()


def column(outcomes: Sequence[ItemResult], place: int) -> Array:
    """One output of all items."""
    return np.stack([outcome.outputs[place] for outcome in outcomes])


@pytest.mark.parametrize(
    ("batch", "size"), [("N", 4), (1, 1), (3, 3), (8, 4)], ids=["open", "one", "three", "eight"]
)
async def test_several_inputs_and_outputs_with_an_open_and_a_fixed_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, batch: int | str, size: int
) -> None:
    folder = graphs.saved(graphs.two_by_two(batch), tmp_path / "sums")
    full = {"max_batch_size": "4", "max_queue_delay_us": "10000000"}
    async with served(monkeypatch, folder, **full) as engine:
        a = np.arange(24, dtype=np.float32).reshape(12, 2)
        b = np.full((12, 2), 9)
        outcomes = await engine.ask(a, b)
        assert np.array_equal(column(outcomes, 0), a + b)
        assert np.array_equal(column(outcomes, 1), a > b)
        assert column(outcomes, 1).dtype == np.bool_
        executions = engine.executions
        # a question of the supervisor's may end the wait for a full batch
        assert max(executions) == size
        assert sum(batch_size * count for batch_size, count in executions.items()) == 12


@pytest.mark.parametrize("batch", ["N", 4])
async def test_an_item_that_the_graph_refuses_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    batch: int | str,
) -> None:
    weights = numpy_helper.from_array(np.arange(10, dtype=np.float32), "weights")
    made = model(
        [node("Gather", "weights tokens", "y")],
        [value("tokens", TensorProto.INT64, [batch])],
        [value("y", axes=[batch])],
        [weights],
    )
    folder, options = graphs.saved(made, tmp_path / "g"), {"max_batch_size": "4", "log_level": "info"}
    async with served(monkeypatch, folder, **options) as engine:
        rows = [np.array([1, 2]), np.array([99]), np.array([3])]
        asked = (engine.ask(row) for row in rows)
        before, failed, after = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(failed, InvalidTensorError)
        assert isinstance(before, list)
        assert isinstance(after, list)
        assert column([*before, *after], 0).tolist() == [1, 2, 3]
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    (line,) = (line for line in lines if line["event"] == "an item cannot be computed")
    assert line["level"] == "info"  # it is the client's fault
    assert any(word in line["reason"] for word in ("99", "range", "bounds"))


async def test_a_network_that_takes_few_lengths_is_served_for_these(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shape = numpy_helper.from_array(np.array([0, -1, 64]), "shape")
    axes = numpy_helper.from_array(np.array([1, 2]), "axes")
    made = model(
        [node("Reshape", "x shape", "parts"), node("ReduceMax", "parts axes", "most"),
         node("Flatten", "most", "column"), node("Sub", "x column", "y")],
        [value("x", axes=["N", "n"])],
        [value("y", axes=["N", "n"])],
        [shape, axes],
    )  # fmt: skip
    async with served(monkeypatch, graphs.saved(made, tmp_path / "parts")) as engine:
        (outcome,) = await engine.ask(np.full((1, 128), 7, np.float32))
        assert not outcome.outputs[0].any()
        with pytest.raises(InvalidTensorError):
            await engine.ask(np.zeros((1, 63), np.float32))
