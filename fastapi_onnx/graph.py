"""Puts the normalisation in front of a model, inside the graph: uint8 pixels in, logits out."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from serving.errors import ConfigurationError
from serving.model import ImagePipeline

INPUT = "serving_pixels"  # a name that a model of one's own will not have


def with_uint8_input(model: onnx.ModelProto, pipeline: ImagePipeline) -> onnx.ModelProto:
    """float [N, 3, H, W] in -> uint8 [N, H, W, 3] in, one quarter of the bytes.

    (pixel / 255 - mean) / std becomes one multiplication and one addition per channel. Raises
    ConfigurationError when the model is not of the documented shape.
    """
    graph = model.graph
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    if len(inputs) != 1 or inputs[0].type.tensor_type.elem_type != TensorProto.FLOAT:
        raise ConfigurationError("model.onnx must have exactly one input, float [N, 3, H, W]")
    name = inputs[0].name
    std = np.asarray(pipeline.std, np.float32).reshape(1, 3, 1, 1)
    mean = np.asarray(pipeline.mean, np.float32).reshape(1, 3, 1, 1)
    height, width = pipeline.output_size
    pixels = helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["N", height, width, 3])
    nodes = [
        helper.make_node("Transpose", [INPUT], [f"{INPUT}_nchw"], perm=[0, 3, 1, 2]),
        helper.make_node("Cast", [f"{INPUT}_nchw"], [f"{INPUT}_float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{INPUT}_float", f"{INPUT}_scale"], [f"{INPUT}_scaled"]),
        helper.make_node("Add", [f"{INPUT}_scaled", f"{INPUT}_shift"], [name]),
    ]
    result = onnx.ModelProto()
    result.CopyFrom(model)
    result.graph.input.remove(inputs[0])
    result.graph.input.insert(0, pixels)
    result.graph.initializer.extend(
        [
            numpy_helper.from_array((1 / (255 * std)).astype(np.float32), f"{INPUT}_scale"),
            numpy_helper.from_array((-mean / std).astype(np.float32), f"{INPUT}_shift"),
        ]
    )
    body = list(result.graph.node)
    del result.graph.node[:]
    result.graph.node.extend(nodes + body)
    return result
