"""`fastapi_onnx.batch_axis` and `batch_rules`: which graphs keep the items of a batch apart."""

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from fastapi_onnx.batch_axis import BatchAxis
from smallplates.models.tensors import Array

LONGEST, CHECKED = 20, 3
"""Items of the largest batch that is tried, and those of it that are compared."""


def batches(case: TestCase) -> Iterator[tuple[list[int], list[Array]]]:
    """The inputs whose first axis may be the batch, all or one of them; and numbers of all inputs.

    Of a batch of one, three different ones are made.
    """
    arrays = [
        numpy_helper.to_array(data) if isinstance(data, onnx.TensorProto) else data
        for data in (case.data_sets or [])[0][0]
    ]
    assert case.model
    are_tensors = all(value.type.HasField("tensor_type") for value in case.model.graph.input)
    if not are_tensors or not all(isinstance(array, np.ndarray) for array in arrays):
        return
    for size in {array.shape[0] for array in arrays if array.ndim}:
        alike = [place for place, array in enumerate(arrays) if array.shape[:1] == (size,)]
        for places in [alike, *([place] for place in alike[: len(alike) if alike[1:] else 0])]:
            if size == 1:
                yield (
                    places,
                    [widened(array) if at in places else array for at, array in enumerate(arrays)],
                )
            elif 0 < size <= LONGEST:
                yield places, arrays


def widened(array: Array) -> Array:
    return np.concatenate([array, np.roll(array, 1, -1), np.flip(array, -1)])


def graph(case: TestCase, places: Sequence[int], arrays: Sequence[Array]) -> onnx.ModelProto:
    """The case's graph with the batch as its inputs, and all else as weights."""
    made = onnx.ModelProto()
    made.CopyFrom(case.model)
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    inputs = list(made.graph.input)
    del made.graph.input[:]
    for place, (value, array) in enumerate(zip(inputs, arrays, strict=True)):
        if place in places:
            made.graph.input.append(value)
            value.type.tensor_type.shape.dim[0].dim_value = len(array)
            made.graph.input[-1].CopyFrom(value)
        else:
            made.graph.initializer.append(numpy_helper.from_array(array, value.name))
    return made


def session_of(made: onnx.ModelProto, inputs: dict[str, Array]) -> ort.InferenceSession | None:
    """A session that computes these inputs, if ONNX Runtime has the operators and types for it."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(made.SerializeToString(), options)
        session.run(None, inputs)
    except Exception:  # onnxruntime's types have no common base
        return None
    return session


def parts(array: Array, axis: int, count: int) -> list[Array]:
    return [part.astype(np.float64) for part in np.split(array, count, axis)]


@pytest.mark.slow
def test_operators_that_keep_items_apart_compute_them_as_alone() -> None:
    """In ONNX's own cases, an item among others is as among copies of itself, wherever it is."""
    with warnings.catch_warnings(action="ignore"):  # of the cases' own arithmetic
        cases = [case for case in load_model_tests(kind="node") if case.model]
    compared = set()
    for case in cases:
        for places, arrays in batches(case):
            made, count = graph(case, places, arrays), len(arrays[places[0]])
            followed = BatchAxis(made, count, 16)
            outputs = followed.outputs()
            kept = {
                at: one.rows for at, one in enumerate(outputs) if one.rows is not None and not one.mixer
            }
            inputs = {made.graph.input[at].name: arrays[place] for at, place in enumerate(places)}
            session = session_of(made, inputs) if kept else None
            if session is None:
                continue
            together = session.run(None, inputs)
            for row in range(min(count, CHECKED)):
                copies = {
                    name: np.repeat(array[row : row + 1], count, 0) for name, array in inputs.items()
                }
                found = session.run(None, copies)
                for at, axis in kept.items():
                    expected = parts(together[at], axis, count)[row]
                    for part in parts(found[at], axis, count):
                        np.testing.assert_allclose(part, expected, 1e-3, 1e-5, err_msg=case.name)
            compared.add(made.graph.node[0].op_type)
    assert len(compared) > 120
