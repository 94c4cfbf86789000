"""One optimised copy of a model on disk, whose weights all sessions map instead of holding their own.

ONNX Runtime rewrites a graph for the processor when it opens it: it folds batch norm and reorders the
weights of convolutions, and every session then holds its own copy of them. Here the first one to come
writes the outcome down, weights apart; all others map that file, so that the kernel keeps one copy for
all sessions of all workers, and open in milliseconds.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnxruntime as ort

from serving.logging import logger

CPU = "CPUExecutionProvider"
FOLDER, LOCK, GRAPH, WEIGHTS = "optimised", "lock", "model.onnx", "weights.bin"
LEAST_BYTES = "1024"  # smaller tensors stay in the graph
ERRORS_ONLY = 3  # it warns that the file is for this machine only, which it is


def optimised(graph: Callable[[], bytes], scratch: Path) -> Path | None:
    """The path of the optimised graph; None where it cannot be written.

    Whoever comes first makes the graph and writes it, the others wait: making it takes several times
    the memory of the weights. `scratch` is of one model.
    """
    folder = scratch / FOLDER
    try:
        with (scratch / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                write(graph(), folder)
    except Exception as error:  # the disk is full, or the graph is none: opening it will tell
        logger().warning("the model's weights cannot be shared", reason=str(error))
        return None
    return folder / GRAPH


def write(graph: bytes, folder: Path) -> None:
    """Under another name first: a folder that exists is complete. Raises OSError or ONNX Runtime's."""
    partial = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = ERRORS_ONLY
        options.optimized_model_filepath = str(partial / GRAPH)
        entry = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(entry + "file_name", WEIGHTS)
        options.add_session_config_entry(entry + "min_size_in_bytes", LEAST_BYTES)
        ort.InferenceSession(graph, options, providers=[CPU])
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
