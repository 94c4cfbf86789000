"""Session on a CPU whose weights all workers share; used by `network.py`."""

from collections.abc import Callable
from pathlib import Path

import onnxruntime as ort

from fastapi_onnx.shared_weights import CPU, optimised, optimiser_options
from serving.description import Kind
from serving.logging import logger
from serving.settings import Settings

INT8: Kind = "model_quantized.onnx"
FILES: dict[str, Kind] = {"fp32": "model.onnx", "int8": INT8}


def cpu_session(
    graph: Callable[[], bytes | Path], settings: Settings, scratch: Path | None
) -> ort.InferenceSession:
    """Makes a session with weights shared through `scratch`, or with its own if that fails.

    `graph` returns a graph, or the path of one, which may have its weights in further files.
    """
    options = cpu_options(settings)
    path = optimised(graph, scratch) if scratch else None
    if path:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return ort.InferenceSession(path, options, providers=[CPU])
        except Exception as error:  # onnxruntime's types have no common base
            logger().warning("the model's shared weights cannot be used", reason=str(error))
            options = cpu_options(settings)
    return ort.InferenceSession(graph(), options, providers=[CPU])


def cpu_options(settings: Settings) -> ort.SessionOptions:
    """Returns session options: several threads spin during a computation and sleep when it is over."""
    options = optimiser_options()
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = 1
    spin = settings.intra_op_threads > 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options
