"""Graphs of a fixed batch size, which a GPU can record; used by `cuda.py` when it loads a model."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

from fastapi_onnx.normalisation import (
    NORMALISED,
    PIXELS,
    model_input,
    normalising_nodes,
    scale_and_shift,
)
from smallplates.models.description import ImagePipeline

OPSET = helper.make_opsetid("", 18)
IR_VERSION = 10
MEANS = ("ReduceMean", "GlobalAveragePool")
"""In float16 their sums overflow: a ResNet-152 with random weights answered infinity on an H200."""


def normalisation(pipeline: ImagePipeline, size: int) -> onnx.ModelProto:
    """Makes a graph that normalises uint8 [size, H, W, 3] to float32 [size, 3, H, W]."""
    height, width = pipeline.output_size
    pixels = helper.make_tensor_value_info(PIXELS, TensorProto.UINT8, [size, height, width, 3])
    tensors = helper.make_tensor_value_info(NORMALISED, TensorProto.FLOAT, [size, 3, height, width])
    graph = helper.make_graph(
        normalising_nodes(), "normalisation", [pixels], [tensors], scale_and_shift(pipeline)
    )
    return helper.make_model(graph, opset_imports=[OPSET], ir_version=IR_VERSION)


def of_size(model: onnx.ModelProto, size: int, pipeline: ImagePipeline) -> onnx.ModelProto:
    """Returns the model with `size` as its batch dimension, whatever the file has."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.value_info[:]  # inferred for other sizes; ONNX Runtime infers them anew
    height, width = pipeline.output_size
    shape = model_input(result).type.tensor_type.shape
    del shape.dim[:]
    for length in (size, 3, height, width):
        shape.dim.add().dim_value = length
    for output in result.graph.output:
        if dimensions := output.type.tensor_type.shape.dim:
            dimensions[0].dim_value = size
    return result


def simplify(
    model: onnx.ModelProto,
) -> tuple[onnx.ModelProto, Callable[[NDArray[np.float32]], NDArray[np.float32]]]:
    """Folds constants and batch normalisation; stored float16 weights become float32.

    Returns the model, and a function that computes its logits of normalised images, [N, 3, H, W], on a
    CPU.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder, "model.onnx"))
        options.log_severity_level = 3  # errors only: it warns of every optimised file
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        folded = onnx.load(options.optimized_model_filepath)
    name = session.get_inputs()[0].name

    def logits(tensors: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.concatenate([session.run(None, {name: each[np.newaxis]})[0] for each in tensors])

    return folded, logits


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model in float16; its input, its output and the means of channels stay float32."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    converted: onnx.ModelProto = convert_float_to_float16(
        copy, keep_io_types=True, op_block_list=[*DEFAULT_OP_BLOCK_LIST, *MEANS]
    )
    return converted


def normalise(pixels: NDArray[np.uint8], pipeline: ImagePipeline) -> NDArray[np.float32]:
    """Normalises uint8 [N, H, W, 3] to float32 [N, 3, H, W], in NumPy."""
    mean, std = (np.asarray(values, np.float32) for values in (pipeline.mean, pipeline.std))
    tensors = (pixels.astype(np.float32) / 255 - mean) / std
    return np.ascontiguousarray(tensors.transpose(0, 3, 1, 2), np.float32)
