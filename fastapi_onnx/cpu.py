"""Network on a CPU: a session whose weights all workers share; used by `backend.py`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from fastapi_onnx.graph import PIXELS, TENSOR, with_two_inputs
from fastapi_onnx.optimised import CPU, optimised, optimiser_options
from serving.description import Kind
from serving.errors import ConfigurationError
from serving.logging import logger
from serving.model import Model
from serving.settings import Settings

INT8: Kind = "model_quantized.onnx"
FILES: dict[str, Kind] = {"fp32": "model.onnx", "int8": INT8}


class CpuNetwork:
    """Network that computes images or normalised tensors in batches of any size."""

    def __init__(
        self, model: Model, settings: Settings, scratch: Path | None, precision: str = "fp32"
    ) -> None:
        """Opens a session with the file of `precision`. Raises ConfigurationError."""
        self._session = open_session(model, precision, settings, scratch)
        height, width = model.description.pipeline.output_size
        self._no_pixels = np.empty((0, height, width, 3), np.uint8)
        self._no_tensor = np.empty((0, 3, height, width), np.float32)

    def infer(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Computes logits [N, classes] of RGB images [N, H, W, 3]."""
        return self._run(batch, self._no_tensor)

    def infer_tensor(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Computes logits [N, classes] of normalised images [N, 3, H, W]; NaN for one not finite."""
        logits = self._run(self._no_pixels, batch)
        logits[~np.isfinite(batch.sum((1, 2, 3)))] = np.nan  # ReLU and int8 make numbers of it
        return logits

    def _run(
        self,
        pixels: NDArray[np.uint8],
        tensor: NDArray[np.float32],
        options: ort.RunOptions | None = None,
    ) -> NDArray[np.float32]:
        """Computes the input that has elements; the other one is empty."""
        inputs = {PIXELS: pixels, TENSOR: tensor}
        logits: NDArray[np.float32] = self._session.run(None, inputs, options)[0]
        return logits

    def trim(self) -> None:
        """Shrinks the memory arena to the size that a batch of one needs."""
        options = ort.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        one = np.zeros((1, *self._no_pixels.shape[1:]), np.uint8)
        self._run(one, self._no_tensor, options)


def open_session(
    model: Model, precision: str, settings: Settings, scratch: Path | None
) -> ort.InferenceSession:
    """Opens the file that `FILES` names, with two inputs. Raises ConfigurationError."""
    path = model.file(FILES[precision])

    def graph() -> bytes:
        made: bytes = with_two_inputs(onnx.load(path), model.description.pipeline).SerializeToString()
        return made

    try:
        return cpu_session(graph, settings, scratch)
    except ConfigurationError:
        raise
    except Exception as error:  # onnx and onnxruntime raise types of their own, one per cause
        raise ConfigurationError(f"{path} cannot be loaded: {error}") from error


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
