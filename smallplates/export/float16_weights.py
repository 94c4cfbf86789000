"""Float16 storage of an ONNX file's large weights, which halves the file; the graph casts them back.

ONNX Runtime folds the casts when it loads the file, so that it computes in float32 as before.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SMALL = 256  # numbers; below it a cast node costs as much as it saves
MATRIX = 2  # axes; vectors stay as they are, as in the files for PyTorch


def store_weights_as_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Stores large weights as float16; rounds those that are no float16 numbers."""
    casts = []
    for tensor in model.graph.initializer:
        is_large = len(tensor.dims) >= MATRIX and np.prod(tensor.dims) >= SMALL
        if tensor.data_type != TensorProto.FLOAT or not is_large:
            continue
        values = numpy_helper.to_array(tensor).astype(np.float16)
        stored = f"{tensor.name}.float16"
        casts.append(helper.make_node("Cast", [stored], [tensor.name], to=TensorProto.FLOAT))
        tensor.CopyFrom(numpy_helper.from_array(values, stored))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(casts + nodes)
    return model


def restore_float32_weights(model: onnx.ModelProto) -> bool:
    """Undoes `store_weights_as_float16`, but for the rounding; returns whether one was stored so."""
    stored = {t.name: t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT16}
    casts = [n for n in model.graph.node if n.op_type == "Cast" and n.input[0] in stored]
    for node in casts:
        tensor = stored[node.input[0]]
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, node.output[0]))
        model.graph.node.remove(node)
    del model.graph.value_info[:]  # types of what is changed here, and by a quantiser
    return bool(casts)
