"""Weights in fewer bits or in another file: what a graph computes with them, and the way back."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from fastapi_onnx import graph_file
from smallplates.export import stored_weights
from smallplates.export.stored_weights import StoredWeights
from tests import graphs
from tests.graphs import node, tensors, value

MATRIX = np.arange(512, dtype=np.float32).reshape(16, 32) % 16 / 8
INPUT = np.arange(32, dtype=np.float32).reshape(2, 16)


def graph() -> onnx.ModelProto:
    """A product with the matrix, and a small bias."""
    nodes = [node("MatMul", "x matrix", "product"), node("Add", "product bias", "y")]
    inputs, outputs = [value("x", axes=["N", 16])], [value("y", axes=["N", 32])]
    weights = tensors(matrix=MATRIX, bias=np.ones((1, 32), np.float32))
    return graphs.model(nodes, inputs, outputs, weights, opset=20)


def in_8_bits(transposed: bool) -> onnx.ModelProto:
    """The graph with its matrix in float8."""
    numbers = MATRIX.T if transposed else MATRIX
    kind = helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E4M3FN)
    tensor = numpy_helper.from_array(np.ascontiguousarray(numbers).astype(kind), "stored")
    cast = "cast" if transposed else "matrix"
    nodes = [node("Cast", "stored", cast, to=TensorProto.FLOAT)]
    if transposed:
        nodes.append(node("Transpose", "cast", "matrix", perm=[1, 0]))
    return stored_weights.store_weights(graph(), [StoredWeights("matrix", tensor, nodes)])


def computed(model: onnx.ModelProto | Path) -> np.ndarray:
    source = model if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": INPUT})
    return np.asarray(result)


@pytest.mark.parametrize("bits", ["16", "8", "8, transposed"])
def test_weights_in_fewer_bits_and_back(bits: str) -> None:
    if bits == "16":
        model = stored_weights.store_weights_as_float16(graph())
    else:
        model = in_8_bits(transposed=bits != "8")
    before = model.SerializeToString()
    assert len(before) < len(graph().SerializeToString())
    np.testing.assert_array_equal(computed(model), INPUT @ MATRIX + 1)
    stored = stored_weights.restore_float32_weights(model, [])
    assert [each.name for each in stored] == ["matrix"]
    assert model.graph.node == graph().graph.node
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), MATRIX)
    assert stored_weights.store_weights(model, stored).SerializeToString() == before


def test_weights_in_another_file_stay_there(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(graph(), path, save_as_external_data=True, location="data", size_threshold=256)
    model = graph_file.read(path)
    outside = graph_file.tensors_outside(path)
    stored = stored_weights.restore_float32_weights(model, outside)
    assert [each.name for each in stored] == ["matrix"]
    np.testing.assert_array_equal(computed(model), INPUT @ MATRIX + 1)
    onnx.save(stored_weights.store_weights(model, stored), path)
    assert graph_file.tensors_outside(path) == outside
    np.testing.assert_array_equal(computed(path), INPUT @ MATRIX + 1)


def test_what_a_graph_no_longer_has_is_not_stored_again() -> None:
    model = in_8_bits(transposed=True)
    stored = stored_weights.restore_float32_weights(model, [])
    model.graph.initializer[0].name = "matrix_quantized"
    nodes = list(model.graph.node)
    assert list(stored_weights.store_weights(model, stored).graph.node) == nodes
