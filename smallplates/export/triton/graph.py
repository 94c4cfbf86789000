"""Renames an ONNX model's input and output to `input` and `output`, which clients know.

Triton's ONNX backend expects the configuration's names in the graph. Called by `build.py`.
"""

import onnx
from onnx import TensorProto, ValueInfoProto, helper

from fastapi_onnx.normalisation import model_input
from smallplates.errors import ConfigurationError

INPUT, OUTPUT = "input", "output"


def with_known_names(model: onnx.ModelProto, size: tuple[int, int], classes: int) -> onnx.ModelProto:
    """Returns the same model with float `input` [N, 3, height, width] and `output` [N, classes].

    Raises ConfigurationError if its input and first output have other types or shapes, or a fixed N.
    """
    graph_input = model_input(model)
    if not model.graph.output:
        raise ConfigurationError("model.onnx must have an output")
    logits = model.graph.output[0]
    check(graph_input, (3, *size))
    check(logits, (classes,))
    if (graph_input.name, logits.name) == (INPUT, OUTPUT):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    index = list(model.graph.input).index(graph_input)
    rename(result.graph, result.graph.input[index], INPUT, is_input=True)
    rename(result.graph, result.graph.output[0], OUTPUT, is_input=False)
    return result


def check(value: ValueInfoProto, dims: tuple[int, ...]) -> None:
    """Raises ConfigurationError unless the value is float [N, *dims] with an open N.

    Other open dimensions fit any length.
    """
    tensor = value.type.tensor_type
    lengths = list(tensor.shape.dim)
    fits = len(lengths) == 1 + len(dims) and all(
        not length.HasField("dim_value") or length.dim_value == size
        for length, size in zip(lengths[1:], dims, strict=True)
    )
    if tensor.elem_type != TensorProto.FLOAT or not fits:
        raise ConfigurationError(f"{value.name!r} in model.onnx is not float {['N', *dims]}")
    if lengths[0].HasField("dim_value"):
        raise ConfigurationError(f"the batch's size is fixed in model.onnx, see {value.name!r}")


def rename(graph: onnx.GraphProto, value: ValueInfoProto, name: str, is_input: bool) -> None:
    """Renames an input or an output by an Identity node; the tensor inside keeps its name.

    Raises ConfigurationError if the name is taken.
    """
    inside = value.name
    if inside == name:
        return
    if any(name in (*node.input, *node.output) for node in graph.node):
        raise ConfigurationError(f"a tensor inside model.onnx is named {name!r} already")
    value.name = name
    if is_input:
        graph.node.insert(0, helper.make_node("Identity", [name], [inside]))
    else:
        graph.node.append(helper.make_node("Identity", [inside], [name]))
