"""ONNX's own cases for runtimes, which the package `onnx` brings, with their inputs and outputs.

Each graph is answered as expected, or refused in a sentence for a reason that is listed here. The
requests go through everything but sockets and processes: the reading of the file, the codec, the slots,
the executor, the runtime, and Triton's client at both ends.
"""

import asyncio
import json
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tritonclient.http
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from tritonclient.utils import np_to_triton_dtype

from fastapi_onnx.backend import OnnxBackend
from smallplates.engine.backend import Backend
from smallplates.engine.client import ItemResult, error_for
from smallplates.engine.memory import Memory, SlotLayout, State
from smallplates.errors import ConfigurationError, ServingError
from smallplates.models.folder import Model
from smallplates.models.tensors import Array, Item, Signature
from smallplates.settings import Settings
from smallplates.supervision.planner import task_of
from smallplates.web.api.catalog import entries_of
from smallplates.web.dialects.v2 import codec
from smallplates.web.http.body import dump_json
from smallplates.web.inference.served_model import RequestOptions, ServedModel
from smallplates.worker.executor import BatchExecutor
from tests import graphs
from tests.batches import divided

SLOTS = 128
SETTINGS = Settings(device="cpu", cpu_runtime="onnxruntime")
REFUSALS = {
    "a type": r"the type (STRING|BFLOAT16|COMPLEX\w+|FLOAT[468]\w+|U?INT[24])\b|is not a tensor",
    "no input": "the graph has no input",
    "an unknown number of axes": "the number of axes of the (in|out)put .* is unknown",
    "not in ONNX Runtime": "model.onnx cannot be loaded",
}
RUNTIME = "ONNX Runtime answers otherwise, or not at all"
EMPTY = "an empty tensor"
LIMIT_NEEDED = re.compile(r'"limits": \{"(.+)": 1000\}')


class Case(NamedTuple):
    """A graph, its inputs in the order of the graph's, and the outputs that it should have."""

    name: str
    model: onnx.ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float


def loaded(case: TestCase) -> Case:
    """A case of the package, from its objects or from its files."""
    if case.model is not None:
        inputs, outputs = (list(map(array_of, side)) for side in (case.data_sets or [])[0])
        return Case(case.name, case.model, inputs, outputs, case.rtol, case.atol)
    folder = Path(str(case.model_dir))
    data = folder / "test_data_set_0"
    inputs, outputs = (
        [tensor(data / f"{kind}_{index}.pb") for index in range(len(list(data.glob(f"{kind}_*.pb"))))]
        for kind in ("input", "output")
    )
    return Case(case.name, onnx.load(folder / "model.onnx"), inputs, outputs, case.rtol, case.atol)


def tensor(path: Path) -> Array:
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def array_of(data: Any) -> Any:
    return numpy_helper.to_array(data) if isinstance(data, onnx.TensorProto) else data


class InProcess(ServedModel):
    """A model whose worker is a function call."""

    def __init__(self, model: Model, signatures: tuple[Signature, ...]) -> None:
        self.description = model.description
        self.signatures = signatures
        self.task = task_of(model, SETTINGS, {}, signatures)
        self.largest_request = SLOTS


class Call:
    """What an admitted request does in the engine, as one function call."""

    def __init__(self, signatures: tuple[Signature, ...], backend: Backend) -> None:
        self._signatures, self._backend = signatures, backend
        self._results: list[ItemResult] = []

    def begin(self, signature: int, items: int, _: int) -> None:
        """Notes what is to be submitted."""
        self._signature, self._count = signature, items

    async def submit(self, items: Sequence[Item]) -> None:
        """Computes the items. Raises the engine's error."""
        assert len(items) == self._count
        indices = list(range(self._count))
        with running(self._signatures, self._backend) as (memory, executor):
            for slot, item in zip(indices, items, strict=True):
                memory.write_inputs(slot, self._signature, item)
            for batch in divided(executor, indices):
                executor.mark(batch)
                executor.finish(executor.begin(batch))
            for slot in indices:
                if memory.state[slot] != State.DONE:
                    raise error_for(memory.state[slot], failure_is_client_error=True, hang_limit_s=3.0)
                self._results.append(ItemResult(memory.read_outputs(slot), 0, 0, 0, 1, True))

    async def results(self) -> list[ItemResult]:
        """Returns the results of all items."""
        return self._results

    def finish(self, *_: object) -> None:
        """Counts nothing."""


@contextmanager
def running(
    signatures: tuple[Signature, ...], backend: Backend
) -> Iterator[tuple[Memory, BatchExecutor]]:
    layout = SlotLayout(SLOTS, web_processes=1, workers=1, max_batch=SLOTS, signatures=signatures)
    memory = Memory.create(layout)
    read_end, write_end = os.pipe()
    queue: Any = SimpleNamespace(cap=SLOTS)
    executor = BatchExecutor(memory, 0, queue, (write_end,))
    executor.backend = backend
    executor.open(SLOTS)
    try:
        yield memory, executor
    finally:
        os.close(read_end)
        os.close(write_end)
        memory.close()


def served(case: Case, folder: Path) -> dict[str, Array]:
    """The outputs that a client gets. Raises ServingError."""
    backend = OnnxBackend()
    graphs.saved(case.model, folder, "1")
    limits: dict[str, int] = {}
    while True:
        described = {"name": "case", "version": "1", "task": "tensor", "limits": limits}
        (folder / "model.json").write_text(json.dumps(described))
        model = Model.read(folder)
        try:
            signatures = (graphs.compared(model),)
            break
        except ConfigurationError as error:
            if not (needed := LIMIT_NEEDED.search(str(error))):
                raise
            limits[needed[1]] = 1000
    backend.load(model, SETTINGS)
    active = InProcess(model, signatures)
    (entry,) = entries_of(active)
    body, length = tritonclient.http.InferenceServerClient.generate_request_body(inputs_of(case))
    call = codec.decode(body, None if length is None else str(length), entry, SLOTS)
    for output in call.outputs:
        output.binary = True
    assert call.tensors is not None
    admission: Any = Call(signatures, backend)
    answer = asyncio.run(active.infer(call.tensors, RequestOptions(1000), admission))
    content, tails = codec.encode(call, answer)
    head = dump_json(content)
    result = tritonclient.http.InferenceServerClient.parse_response_body(
        b"".join([head, *tails]), header_length=len(head) if tails else None
    )
    return {output.name: result.as_numpy(output.name) for output in case.model.graph.output}


def inputs_of(case: Case) -> list[tritonclient.http.InferInput]:
    inputs = []
    for spec, data in zip(case.model.graph.input, case.inputs, strict=False):
        array = np.asarray(data)
        inputs.append(
            tritonclient.http.InferInput(spec.name, array.shape, np_to_triton_dtype(array.dtype))
        )
        inputs[-1].set_data_from_numpy(array)
    return inputs


def same(case: Case, expected: Iterable[Any], found: Iterable[Any]) -> bool:
    for wanted, array in zip(map(np.asarray, expected), map(np.asarray, found), strict=True):
        if (wanted.shape, wanted.dtype) != (array.shape, array.dtype):
            return False
        if not np.allclose(array, wanted, case.rtol, case.atol, equal_nan=True):
            return False
    return True


def by_runtime(case: Case) -> list[Any] | None:
    """The outputs of ONNX Runtime itself; None if it refuses the graph or its inputs."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    names = [spec.name for spec in case.model.graph.input]
    try:
        session = ort.InferenceSession(case.model.SerializeToString(), options)
        outputs: list[Any] = session.run(
            None, {name: np.asarray(data) for name, data in zip(names, case.inputs, strict=False)}
        )
    except Exception:  # onnxruntime's types have no common base
        return None
    return outputs


def outcome(case: Case, folder: Path) -> str:
    """`equal`, the reason of a refusal, or what is wrong."""
    try:
        found = served(case, folder)
    except (ConfigurationError, ServingError) as error:
        return refusal(case, str(error))
    if same(case, case.outputs, found.values()):
        return "equal"
    expected, again = by_runtime(case), by_runtime(case)
    if expected is None or again is None or not same(case, expected, again):
        return "random"
    return RUNTIME if same(case, expected, found.values()) else "wrong"


def refusal(case: Case, sentence: str) -> str:
    """The reason of a refusal, or the sentence itself if there is no good one."""
    for reason, words in REFUSALS.items():
        if re.search(words, sentence) and "\n" not in sentence:
            return reason
    arrays = [data for data in (*case.inputs, *case.outputs) if isinstance(data, np.ndarray)]
    if any(array.size == 0 for array in arrays):
        return EMPTY
    return RUNTIME if by_runtime(case) is None else f"refused: {sentence}"


@pytest.mark.parametrize(
    ("kinds", "fewest"),
    [
        (["simple", "pytorch-converted", "pytorch-operator"], 90),
        pytest.param(["node"], 1200, marks=pytest.mark.slow),
    ],
    ids=["files", "node"],
)
def test_onnxs_own_cases(
    kinds: list[str], fewest: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings(action="ignore"):  # of the cases' own arithmetic
        cases = [loaded(case) for kind in kinds for case in load_model_tests(kind=kind)]
        outcomes = {case.name: outcome(case, tmp_path / case.name) for case in cases}
    counts = Counter(outcomes.values())
    with capsys.disabled():
        sys.stdout.write(f"\n{len(cases)} cases: {dict(counts.most_common())}\n")
    expected = {"equal", "random", RUNTIME, EMPTY, *REFUSALS}
    assert {name: found for name, found in outcomes.items() if found not in expected} == {}
    assert counts["equal"] >= fewest
