"""Model graph with the normalisation in front of it, and a second input that bypasses it.

On a CPU one session then serves images and tensors: a second session would hold the weights again. On a
GPU a recorded graph cannot branch: `cuda.py` runs the normalisation as a graph of its own.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fastapi_onnx.logits import keep_logits
from smallplates.errors import ConfigurationError
from smallplates.models.description import ImagePipeline

PREFIX = "serving_"  # users' models will not have such names
PIXELS, TENSOR = f"{PREFIX}pixels", f"{PREFIX}tensor"
NORMALISED = f"{PIXELS}_normalised"


def with_two_inputs(model: onnx.ModelProto, pipeline: ImagePipeline) -> onnx.ModelProto:
    """Returns the model with the inputs uint8 [N, H, W, 3] and float [M, 3, H, W], one of them empty.

    It returns only the logits. The model itself reads float [N, 3, H, W].
    (pixel / 255 - mean) / std becomes one multiplication and one addition per channel. Raises
    ConfigurationError if the model has another input, or no logits.

    Concatenating both inputs costs nothing that can be measured. A branch (`If`) would not copy the
    pixels, but OpenVINO then passes a wrong memory layout to a model that begins with AveragePool.
    """
    graph_input = model_input(model)
    height, width = pipeline.output_size
    result = onnx.ModelProto()
    result.CopyFrom(model)
    result.ir_version = max(4, result.ir_version)  # older versions want weights among the inputs
    del result.graph.input[:]
    result.graph.input.extend(
        [
            helper.make_tensor_value_info(PIXELS, TensorProto.UINT8, ["N", height, width, 3]),
            helper.make_tensor_value_info(TENSOR, TensorProto.FLOAT, ["M", 3, height, width]),
        ]
    )
    keep_logits(result.graph)
    forget_batch_size(result.graph)
    result.graph.initializer.extend(scale_and_shift(pipeline))
    body = list(result.graph.node)
    del result.graph.node[:]
    either = helper.make_node("Concat", [NORMALISED, TENSOR], [graph_input.name], axis=0)
    result.graph.node.extend([*normalising_nodes(), either, *body])
    return result


def model_input(model: onnx.ModelProto) -> onnx.ValueInfoProto:
    """Returns the only input, float [N, 3, H, W]. Raises ConfigurationError."""
    inputs = model_inputs(model.graph)
    if len(inputs) != 1 or inputs[0].type.tensor_type.elem_type != TensorProto.FLOAT:
        raise ConfigurationError("model.onnx must have exactly one input, float [N, 3, H, W]")
    image_input: onnx.ValueInfoProto = inputs[0]
    return image_input


def model_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Returns a graph's inputs without the weights, which older files list there, too."""
    stored = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in stored]


def forget_batch_size(graph: onnx.GraphProto) -> None:
    """Removes a fixed batch size from the results: ONNX Runtime warns of every other size."""
    del graph.value_info[:]
    for output in graph.output:
        if dimensions := output.type.tensor_type.shape.dim:
            dimensions[0].dim_param = "K"


def scale_and_shift(pipeline: ImagePipeline) -> list[onnx.TensorProto]:
    """Returns factor and summand of the normalisation, float32 [1, 3, 1, 1]."""
    std = np.asarray(pipeline.std, np.float32).reshape(1, 3, 1, 1)
    mean = np.asarray(pipeline.mean, np.float32).reshape(1, 3, 1, 1)
    return [
        numpy_helper.from_array((1 / (255 * std)).astype(np.float32), f"{PREFIX}scale"),
        numpy_helper.from_array((-mean / std).astype(np.float32), f"{PREFIX}shift"),
    ]


def normalising_nodes() -> list[onnx.NodeProto]:
    """Makes the nodes from PIXELS to NORMALISED; they read the tensors of `scale_and_shift`."""
    nchw, floats, scaled = (f"{PIXELS}_{word}" for word in ("nchw", "float", "scaled"))
    return [
        helper.make_node("Transpose", [PIXELS], [nchw], perm=[0, 3, 1, 2]),
        helper.make_node("Cast", [nchw], [floats], to=TensorProto.FLOAT),
        helper.make_node("Mul", [floats, f"{PREFIX}scale"], [scaled]),
        helper.make_node("Add", [scaled, f"{PREFIX}shift"], [NORMALISED]),
    ]
