"""Network of a graph that is asked in tensors, on a CPU or on a GPU; used by `backend.py`."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from fastapi_onnx.cpu import FILES, cpu_session
from fastapi_onnx.optimised import CPU
from fastapi_onnx.tensor_graph import graph_signature
from serving.backends import precision_check
from serving.backends.device_errors import translate_errors
from serving.errors import ConfigurationError
from serving.model import Model
from serving.settings import Settings
from serving.tensors import EXAMPLE_LENGTHS, Array, Signature, examples

if TYPE_CHECKING:
    from fastapi_onnx.cuda import Device


class TensorNetwork:
    """Session that computes a graph as its file has it."""

    def __init__(self, model: Model, session: ort.InferenceSession, precision: str = "auto") -> None:
        """`precision` is that of the settings. Raises ConfigurationError."""
        self._session = session
        self._signature = signature_of(model)
        self.precision = "int8" if precision == "int8" else "fp32"
        self.reason = "a graph in tensor form is computed as its file has it"
        if precision != "auto":
            self.reason = precision_check.FORCED.format(precision)

    @classmethod
    def on_cpu(cls, model: Model, settings: Settings, scratch: Path | None) -> "TensorNetwork":
        """Opens a session whose weights all workers share. Raises ConfigurationError.

        The int8 file is only taken where the settings ask for it.
        """
        check_precision(settings)
        path = model.file(FILES["int8" if settings.precision == "int8" else "fp32"])
        try:
            session = cpu_session(lambda: path, settings, scratch)
        except Exception as error:  # onnxruntime raises types of its own, one per cause
            raise ConfigurationError(f"{path} cannot be loaded: {error}") from error
        return cls(model, session, settings.precision)

    @classmethod
    def on_gpu(cls, model: Model, settings: Settings, device: "Device") -> "TensorNetwork":
        """Opens a session on the CUDA provider. Raises ConfigurationError and OutOfDeviceMemoryError."""
        check_precision(settings)
        if settings.precision == "int8":
            raise ConfigurationError(precision_check.INT8_NEEDS_CPU)
        return cls(model, device.open_file(model.file("model.onnx")), settings.precision)

    def infer(
        self, signature: Signature, inputs: Sequence[Array], options: ort.RunOptions | None = None
    ) -> list[Array]:
        """Computes a batch, see `Backend.infer`; an output without a batch axis gets one, of size 1."""
        names = [spec.name for spec in signature.outputs]
        feed = {spec.name: array for spec, array in zip(signature.inputs, inputs, strict=True)}
        with translate_errors():
            found = self._session.run(names, feed, options)
        return [
            array[None] if array.ndim == len(spec.shape) else array
            for spec, array in zip(signature.outputs, found, strict=True)
        ]

    def trim(self) -> None:
        """Shrinks a CPU's memory arena to the size that a small batch needs."""
        if self._session.get_providers() != [CPU]:
            return
        options = ort.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        signature = self._signature
        for length in EXAMPLE_LENGTHS:
            batch = examples(signature, signature.batch_size or 1, signature.sizes_at(length))
            with contextlib.suppress(Exception):  # onnxruntime's: the network does not take this length
                self.infer(signature, batch, options)
                return


def signature_of(model: Model) -> Signature:
    """Returns how the model's graph is called. Raises ConfigurationError."""
    only_int8 = model.has(FILES["int8"]) and not model.has(FILES["fp32"])
    path = model.file(FILES["int8" if only_int8 else "fp32"])
    return graph_signature(path, model.description.limits)


def check_precision(settings: Settings) -> None:
    """Raises ConfigurationError for a precision into which no graph in tensor form is converted."""
    if settings.precision == "fp16":
        raise ConfigurationError(
            "SERVING_PRECISION=fp16 is for images; a graph in tensor form is computed as its file has it"
        )
