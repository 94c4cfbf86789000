"""Optimised copy of a model on disk, whose weights all sessions of all workers map; for CPUs.

ONNX Runtime optimises a graph for the processor when it opens the graph: it folds batch norm and
reorders convolutions' weights, and every session then holds a copy of its own. Here the first worker
writes the optimised graph, with the weights in a file of their own. All sessions map that file: the
kernel keeps one copy, and sessions open in milliseconds. Called by `backend.py`.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from smallplates.logging import logger

CPU = "CPUExecutionProvider"
FOLDER, LOCK, GRAPH, WEIGHTS = "optimised", "lock", "model.onnx", "weights.bin"
LEAST_BYTES = "1024"  # smaller tensors stay in the graph
QUIET = 4  # it raises its errors, too; what it would write is not JSON


def optimise(graph: Callable[[], bytes | Path], scratch: Path) -> Path | None:
    """Returns the path of the optimised graph; None if it cannot be written.

    The first caller makes and writes the graph, which takes several times the memory of the weights; the
    others wait. `scratch` belongs to one model.
    """
    folder = scratch / FOLDER
    try:
        with (scratch / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                write(graph(), folder)
    except Exception as error:  # a full disk, or a broken graph: opening it will fail, too
        logger().warning("the model's weights cannot be shared", reason=str(error))
        return None
    return folder / GRAPH


def write(graph: bytes | Path, folder: Path) -> None:
    """Writes the folder under another name and renames it: an existing folder is always complete.

    Raises OSError and ONNX Runtime's errors.
    """
    partial = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        options = optimiser_options()
        options.intra_op_num_threads = 1
        options.optimized_model_filepath = str(partial / GRAPH)
        entry = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(entry + "file_name", WEIGHTS)
        options.add_session_config_entry(entry + "min_size_in_bytes", LEAST_BYTES)
        ort.InferenceSession(graph, options, providers=[CPU])
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def optimiser_options() -> ort.SessionOptions:
    """Returns session options with which int8 gives the same answers on all processors."""
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    if products_saturate():
        # other products then, which cost 7 % on an emulated Haswell; without them the shipped model
        # names another class than fp32 for one photo in ten
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


@cache
def products_saturate() -> bool:
    """Returns whether sums of uint8 times int8 saturate, as on x86 processors without VNNI."""
    length = 64
    numbers = helper.make_tensor_value_info("numbers", TensorProto.UINT8, [1, length])
    total = helper.make_tensor_value_info("total", TensorProto.INT32, [1, 1])
    weights = numpy_helper.from_array(np.full((length, 1), 127, np.int8), "weights")
    node = helper.make_node("MatMulInteger", ["numbers", "weights"], ["total"])
    graph = helper.make_graph([node], "product", [numbers], [total], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=[CPU])
    (product,) = session.run(None, {"numbers": np.full((1, length), 255, np.uint8)})
    return int(product[0, 0]) != length * 255 * 127
