"""Network in one session, on a CPU or on a GPU; used by `backend.py`.

`cuda.py` has another one for images on a GPU.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from fastapi_onnx.cpu import FILES, INT8, cpu_session
from fastapi_onnx.normalisation import PIXELS, TENSOR, with_two_inputs
from fastapi_onnx.shared_weights import CPU
from fastapi_onnx.signature import graph_signature
from serving.backends import precision_check
from serving.backends.device_errors import translate_errors
from serving.backends.precision import Infer, chosen_precision
from serving.errors import ConfigurationError
from serving.model import Model
from serving.settings import Settings
from serving.task_kinds import kind_of
from serving.tensors import EXAMPLE_LENGTHS, Array, Signature, TensorSpec, examples

if TYPE_CHECKING:
    from fastapi_onnx.cuda import Device


class Network:
    """Session that computes a graph as its file has it, or an image classifier's with two inputs."""

    def __init__(
        self,
        model: Model,
        session: ort.InferenceSession,
        precision: str = "fp32",
        reason: str = "a graph in tensor form is computed as its file has it",
    ) -> None:
        """`reason` says in words why it is this precision. Raises ConfigurationError."""
        self._session = session
        kind = kind_of(model.description.task)
        self._outputs = kind.outputs
        self.precision = precision
        self.reason = reason
        self._empty: dict[str, Array] = {}
        """Both inputs of an image classifier: the one that is not given stays empty."""

        if kind.plain_graph:
            self._signature = signature_of(model)
        else:
            height, width = model.description.pipeline.output_size
            pixels = TensorSpec("pixels", "uint8", (height, width, 3))
            self._signature = Signature("image", (pixels,), (), normalises=True)
            self._empty[PIXELS] = np.empty((0, height, width, 3), np.uint8)
            self._empty[TENSOR] = np.empty((0, 3, height, width), np.float32)

    @classmethod
    def on_cpu(cls, model: Model, settings: Settings, scratch: Path | None) -> "Network":
        """Opens a session whose weights all workers share. Raises ConfigurationError.

        The int8 file is taken where the settings ask for it, and where it is fit and faster if the task
        says how it is compared.
        """
        check_precision(model, settings)

        def load(precision: str) -> Infer:
            return cls(model, open_session(model, model.file(FILES[precision]), settings, None)).logits

        chosen: tuple[str, ...] = ("fp32",)
        if settings.precision != "auto" or kind_of(model.description.task).compare:
            chosen = chosen_precision(model, INT8, settings, scratch, load)
        session = open_session(model, model.file(FILES[chosen[0]]), settings, scratch)
        return cls(model, session, *chosen)

    @classmethod
    def on_gpu(cls, model: Model, settings: Settings, device: "Device") -> "Network":
        """Opens a session on the CUDA provider. Raises ConfigurationError and OutOfDeviceMemoryError."""
        check_precision(model, settings)
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
        if self._empty:
            return [self._image_logits(inputs[0], options)]
        names = [spec.name for spec in signature.outputs]
        feed = {spec.name: array for spec, array in zip(signature.inputs, inputs, strict=True)}
        with translate_errors():
            outputs = self._session.run(names, feed, options)
        return [
            array[None] if array.ndim == len(spec.shape) else array
            for spec, array in zip(signature.outputs, outputs, strict=True)
        ]

    def _image_logits(self, batch: Array, options: ort.RunOptions | None) -> Array:
        """Computes logits [N, classes] of RGB images, uint8 [N, H, W, 3], or normalised [N, 3, H, W].

        Those of a normalised image that is not finite are NaN.
        """
        name = PIXELS if batch.dtype == np.uint8 else TENSOR
        logits: Array = self._session.run(None, {**self._empty, name: batch}, options)[0]
        if name == TENSOR:
            logits[~np.isfinite(batch.sum((1, 2, 3)))] = np.nan  # ReLU and int8 make numbers of it
        return logits

    def logits(self, samples: Array) -> NDArray[np.float32]:
        """Computes logits [N, classes] of `precision_check.samples`: pixels, or numbers of tokens."""
        values = {"attention_mask": np.ones_like(samples), "token_type_ids": np.zeros_like(samples)}
        specs = self._signature.inputs
        inputs = [values.get(spec.name, samples).astype(spec.dtype, copy=False) for spec in specs]
        outputs = self.infer(self._signature, inputs)
        names = [spec.name for spec in self._signature.outputs]
        place = next((names.index(name) for name in self._outputs if name in names), 0)
        logits: NDArray[np.float32] = outputs[place]
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


def open_session(
    model: Model, path: Path, settings: Settings, scratch: Path | None
) -> ort.InferenceSession:
    """Opens a graph on the CPU; an image classifier's gets its two inputs. Raises ConfigurationError."""

    def graph() -> bytes | Path:
        if kind_of(model.description.task).plain_graph:
            return path
        made: bytes = with_two_inputs(onnx.load(path), model.description.pipeline).SerializeToString()
        return made

    try:
        return cpu_session(graph, settings, scratch)
    except ConfigurationError:
        raise
    except Exception as error:  # onnx and onnxruntime raise types of their own, one per cause
        raise ConfigurationError(f"{path} cannot be loaded: {error}") from error


def check_precision(model: Model, settings: Settings) -> None:
    """Raises ConfigurationError for a precision into which no graph in tensor form is converted."""
    if settings.precision == "fp16" and kind_of(model.description.task).plain_graph:
        raise ConfigurationError(
            "SERVING_PRECISION=fp16 is for images; a graph in tensor form is computed as its file has it"
        )
