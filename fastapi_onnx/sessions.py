"""Sessions: a graph in a runtime, ready to compute; used by `network.py`.

On a CPU all workers share the weights, as far as the runtime lets them.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import onnxruntime as ort

from fastapi_onnx.shared_weights import CPU, optimise, optimiser_options
from smallplates.logging import logger
from smallplates.models.tensors import Array
from smallplates.settings import Settings
from smallplates.worker.device_errors import translate_errors

ONNX_RUNTIME = "onnxruntime"
Graph = Callable[[], bytes | Path]
"""Returns a graph, or the path of one, which may have its weights in further files."""


class Session(Protocol):
    """Graph in a runtime."""

    library: str
    """Runtime and version."""

    provider: str
    """What the runtime computes with."""

    length_step: int
    """See `BackendInfo.length_step`."""

    def is_sure_of(self, inputs: Mapping[str, Array]) -> bool:
        """Returns whether the runtime computes from these numbers what ONNX means."""

    def run(
        self, names: Sequence[str], inputs: Mapping[str, Array], shrink: bool = False
    ) -> list[Array]:
        """Computes the outputs of these names, or all.

        `shrink` gives back memory that this call does not need. Raises the runtime's errors.
        """


class OnnxRuntimeSession:
    """Session of ONNX Runtime, on a CPU or a GPU."""

    library = f"{ONNX_RUNTIME} {ort.__version__}"
    length_step = 1

    def __init__(self, session: ort.InferenceSession, provider: str = CPU) -> None:
        self._session = session
        self.provider = provider
        self._shrink = ort.RunOptions()
        self._shrink.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def is_sure_of(self, inputs: Mapping[str, Array]) -> bool:  # noqa: ARG002 it is the reference
        """Returns True."""
        return True

    def run(
        self, names: Sequence[str], inputs: Mapping[str, Array], shrink: bool = False
    ) -> list[Array]:
        """Computes the outputs of these names, see `Session`."""
        options = self._shrink if shrink and self.provider == CPU else None
        with translate_errors():
            found: list[Array] = self._session.run(list(names) or None, inputs, options)
        return found


def cpu_session(graph: Graph, settings: Settings, scratch: Path | None) -> ort.InferenceSession:
    """Makes a session with weights shared through `scratch`, or with its own if that fails."""
    options = cpu_options(settings)
    path = optimise(graph, scratch) if scratch else None
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
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    spin = settings.threads > 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options
