"""Network of a graph that is asked in tensors, on a CPU or on a GPU; used by `backend.py`."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from fastapi_onnx.cpu import FILES, INT8, cpu_session
from fastapi_onnx.optimised import CPU
from fastapi_onnx.tensor_graph import graph_signature
from serving.backends import precision_check
from serving.backends.device_errors import translate_errors
from serving.backends.precision import Infer, chosen_precision
from serving.backends.precision_check import sample_tokens
from serving.errors import ConfigurationError
from serving.model import Model
from serving.settings import Settings
from serving.task_kinds import TEXT_CLASSIFICATION
from serving.tensors import EXAMPLE_LENGTHS, Array, Signature, examples

if TYPE_CHECKING:
    from fastapi_onnx.cuda import Device


class TensorNetwork:
    """Session that computes a graph as its file has it."""

    def __init__(
        self,
        model: Model,
        session: ort.InferenceSession,
        precision: str = "fp32",
        reason: str = "a graph in tensor form is computed as its file has it",
    ) -> None:
        """`reason` says in words why it is this precision. Raises ConfigurationError."""
        self._session = session
        self._signature = signature_of(model)
        self.precision = precision
        self.reason = reason

    @classmethod
    def on_cpu(cls, model: Model, settings: Settings, scratch: Path | None) -> "TensorNetwork":
        """Opens a session whose weights all workers share. Raises ConfigurationError.

        The int8 file is taken where the settings ask for it, and for texts where it is fit and faster.
        """
        check_precision(settings)

        def load(precision: str) -> Infer:
            return cls(model, open_session(model.file(FILES[precision]), settings, None)).logits

        chosen: tuple[str, ...] = ("fp32",)
        if settings.precision != "auto" or model.description.task == TEXT_CLASSIFICATION:
            chosen = chosen_precision(model, INT8, settings, scratch, load, sample_tokens)
        return cls(model, open_session(model.file(FILES[chosen[0]]), settings, scratch), *chosen)

    @classmethod
    def on_gpu(cls, model: Model, settings: Settings, device: "Device") -> "TensorNetwork":
        """Opens a session on the CUDA provider. Raises ConfigurationError and OutOfDeviceMemoryError."""
        check_precision(settings)
        if settings.precision == "int8":
            raise ConfigurationError(precision_check.INT8_NEEDS_CPU)
        session = device.open_file(model.file("model.onnx"))
        if settings.precision == "auto":
            return cls(model, session)
        return cls(model, session, "fp32", precision_check.FORCED.format(settings.precision))

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

    def logits(self, tokens: Array) -> NDArray[np.float32]:
        """Computes logits [N, classes] of texts without padding; `tokens` are numbers [N, tokens]."""
        signature = self._signature
        values = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
        inputs = [
            values.get(spec.name, np.zeros_like(tokens)).astype(spec.dtype) for spec in signature.inputs
        ]
        found = self.infer(signature, inputs)
        names = [spec.name for spec in signature.outputs]
        logits: NDArray[np.float32] = found[names.index("logits") if "logits" in names else 0]
        return logits

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


def open_session(path: Path, settings: Settings, scratch: Path | None) -> ort.InferenceSession:
    """Opens a graph as its file has it. Raises ConfigurationError."""
    try:
        return cpu_session(lambda: path, settings, scratch)
    except Exception as error:  # onnxruntime raises types of its own, one per cause
        raise ConfigurationError(f"{path} cannot be loaded: {error}") from error


def check_precision(settings: Settings) -> None:
    """Raises ConfigurationError for a precision into which no graph in tensor form is converted."""
    if settings.precision == "fp16":
        raise ConfigurationError(
            "SERVING_PRECISION=fp16 is for images; a graph in tensor form is computed as its file has it"
        )
