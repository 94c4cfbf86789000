"""Check that the items of a graph's batch do not depend on each other, on made-up items.

A graph that normalises over its first axis answers an item otherwise among others than alone, and only a
request of all its items at once is answered as the graph would. Called by `backend.py` where a graph is
described, in a process of its own.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

from fastapi_onnx.network import Network, graph_path
from fastapi_onnx.sessions import OnnxRuntimeSession
from fastapi_onnx.shared_weights import CPU
from fastapi_onnx.signature import graph_signature
from serving.backends.precision_check import EXACT, MAX_DIFFERENCE, difference, random_inputs
from serving.model import Model
from serving.system import cpus
from serving.task_kinds import kind_of
from serving.tensors import EXAMPLE_LENGTHS, NOT_COMPARED, Array, Signature, check_outputs

ITEMS = 3


def with_compared_items(model: Model, signature: Signature) -> Signature:
    """Returns the signature, or if items depend on each other, one without a batch axis.

    Graphs of tasks are left out, and those that compute scales of int8 from their input: of the whole
    batch. Raises ConfigurationError for a graph that cannot be served without the batch axis.
    """
    if kind_of(model.description.task).needs or signature.batch_size == 1:
        return signature
    path = graph_path(model)
    graph = onnx.load(path, load_external_data=False).graph
    if any("Quantize" in node.op_type for node in graph.node):
        return signature
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # opens sooner
    options.intra_op_num_threads = cpus.usable()
    options.log_severity_level = 4  # a refused input is not the service's error
    try:
        session = OnnxRuntimeSession(ort.InferenceSession(path, options, providers=[CPU]))
        alone, again = differences(Network(model, session, signature=signature))
    except Exception:  # the runtime's, which has a type per cause
        return replace(signature, batch_note=f"{NOT_COMPARED}: the graph fails on generated items")
    has_half = any(weights.data_type == TensorProto.FLOAT16 for weights in graph.initializer)
    has_half |= any(spec.dtype == "float16" for spec in (*signature.inputs, *signature.outputs))
    largest = MAX_DIFFERENCE if has_half else EXACT
    if again > largest:
        return replace(signature, batch_note=f"{NOT_COMPARED}: the outputs differ from call to call")
    if alone <= largest:
        return signature
    note = f"items depend on each other: in a batch, results differ by {alone:.2g} (relative)"
    return graph_signature(path, model.description.limits, note)


def differences(network: Network) -> tuple[float, float]:
    """Returns how far items computed alone, and once more together, are from the same ones together.

    See `precision_check.difference`. Raises the runtime's errors, and ValueError.
    """
    signature = network.signature
    size = signature.batch_size or ITEMS
    lengths = EXAMPLE_LENGTHS if signature.input_axes else EXAMPLE_LENGTHS[:1]
    for length in lengths:
        inputs = random_inputs(signature, size, length)
        try:
            together = network.infer(signature, inputs)
            break
        except Exception:  # the runtime's: the network does not take this length
            if length == lengths[-1]:
                raise
    check_outputs(signature, together, size, signature.sizes_at(length))
    again = network.infer(signature, inputs)
    items = range(min(size, ITEMS))
    alone = [one_alone(network, inputs, item) for item in items]
    columns = [np.concatenate(column) for column in zip(*alone, strict=True)]
    same = [array[: len(items)] for array in together]
    return difference(same, columns, "relative"), difference(together, again, "relative")


def one_alone(network: Network, inputs: Sequence[Array], item: int) -> list[Array]:
    """Computes an item of a batch alone, or with copies of itself where the batch size is fixed."""
    copies = network.signature.batch_size or 1
    outputs = network.infer(network.signature, [array[[item] * copies] for array in inputs])
    return [array[:1] for array in outputs]
