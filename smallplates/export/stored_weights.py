"""Storage of an ONNX file's large weights in fewer bits, or in another file; the graph casts them back.

ONNX Runtime folds the casts when it loads the file, so that it computes in float32 as before.
"""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

SMALL = 256  # numbers; below it a cast node costs as much as it saves
MATRIX = 2  # axes; vectors stay as they are, as in the files for PyTorch
FEWER_BITS = (TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FN)


@dataclass(frozen=True)
class StoredWeights:
    """Weights as a file has them."""

    name: str  # of the float32 weights
    tensor: TensorProto  # with its numbers, or the place in another file
    nodes: list[NodeProto]  # that make float32 weights of it


def store_weights_as_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Stores large weights as float16; rounds those that are no float16 numbers."""
    stored = []
    for tensor in model.graph.initializer:
        is_large = len(tensor.dims) >= MATRIX and np.prod(tensor.dims) >= SMALL
        if tensor.data_type != TensorProto.FLOAT or not is_large:
            continue
        half = numpy_helper.from_array(
            numpy_helper.to_array(tensor).astype(np.float16), f"{tensor.name}.float16"
        )
        cast = helper.make_node("Cast", [half.name], [tensor.name], to=TensorProto.FLOAT)
        stored.append(StoredWeights(tensor.name, half, [cast]))
    return store_weights(model, stored)


def store_weights(model: onnx.ModelProto, stored: list[StoredWeights]) -> onnx.ModelProto:
    """Replaces float32 weights by stored ones, as far as the graph still has them."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = []
    for each in stored:
        if each.name in weights:
            weights[each.name].CopyFrom(each.tensor)
            nodes += each.nodes
    nodes += model.graph.node
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def restore_float32_weights(model: onnx.ModelProto, outside: list[TensorProto]) -> list[StoredWeights]:
    """Undoes `store_weights`, but for the rounding; returns how the file stores these weights.

    `outside` are the places of weights in other files, whose numbers `model` has.
    """
    places = {tensor.name: tensor for tensor in outside}
    stored = []
    for tensor in model.graph.initializer:
        before = TensorProto()
        before.CopyFrom(places.get(tensor.name, tensor))
        nodes = nodes_of(model, tensor)
        if nodes:
            values = numpy_helper.to_array(tensor).astype(np.float32)
            name = nodes[-1].output[0]
            tensor.CopyFrom(numpy_helper.from_array(values.T if len(nodes) > 1 else values, name))
            for node in nodes:
                model.graph.node.remove(node)
        if nodes or before.name in places:
            stored.append(StoredWeights(tensor.name, before, nodes))
    del model.graph.value_info[:]  # types of what is changed here, and by a quantiser
    return stored


def nodes_of(model: onnx.ModelProto, tensor: TensorProto) -> list[NodeProto]:
    """Returns the nodes that make float32 weights of a stored tensor: a cast, and what transposes it."""
    if tensor.data_type not in FEWER_BITS:
        return []
    casts = consumers(model, tensor.name)
    if len(casts) != 1 or casts[0].op_type != "Cast":
        return []
    rest = consumers(model, casts[0].output[0])
    transposes = len(rest) == 1 and rest[0].op_type == "Transpose"
    return [*casts, *rest] if transposes and len(tensor.dims) == MATRIX else casts


def consumers(model: onnx.ModelProto, name: str) -> list[NodeProto]:
    """Returns the nodes that take a tensor."""
    return [node for node in model.graph.node if name in node.input]
