"""Network in one session, on a CPU or on a GPU; used by `backend.py`.

`cuda.py` has another one for images on a GPU.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from fastapi_onnx import batch_axis, graph_file
from fastapi_onnx.normalisation import PIXELS, TENSOR, with_two_inputs
from fastapi_onnx.openvino_session import (
    OPENVINO,
    OpenVinoSession,
    forget_others,
    openvino_objection,
)
from fastapi_onnx.pooling import needs_vectors, with_vectors
from fastapi_onnx.sessions import ONNX_RUNTIME, OnnxRuntimeSession, Session, cpu_session
from fastapi_onnx.signature import forget_weights, graph_signature, read_graph
from smallplates.engine.backend import BackendInfo, Trial
from smallplates.errors import ConfigurationError, library_errors
from smallplates.models.description import Kind
from smallplates.models.folder import Model
from smallplates.models.task_kinds import kind_of
from smallplates.models.tensors import (
    Array,
    Signature,
    TensorSpec,
    check_outputs,
    examples,
)
from smallplates.settings import Settings
from smallplates.worker import precision_check
from smallplates.worker.choice import Candidate, Choice, choose, int8_candidate
from smallplates.worker.precision_check import Infer
from smallplates.worker.shared_choice import shared_choice

if TYPE_CHECKING:
    from fastapi_onnx.cuda import Device

FP32: Kind = "model.onnx"
INT8: Kind = "model_quantized.onnx"
SIGNATURE = TypeAdapter(Signature)
RUNTIME_MB, WEIGHTS_SHARE = 130, 1.5
"""Memory that `auto` lets a runtime take in each worker: the library, and a share of the file's size."""


class Network:
    """Session that computes a graph as its file has it, or an image classifier's with two inputs."""

    def __init__(
        self,
        model: Model,
        session: Session,
        choice: Choice | None = None,
        signature: Signature | None = None,
    ) -> None:
        """`choice` says what the session is, and why; `signature` is that of the model if it is known.

        Raises ConfigurationError.
        """
        self._session = session
        self._choice = choice
        self._largest_size = (choice and choice.largest_size) or float("inf")
        self._reference = cache(lambda: session)
        """Opens the session for items of larger sizes, or with numbers that the other may get wrong."""

        kind = kind_of(model.description.task)
        self._outputs = kind.outputs
        self._empty: dict[str, Array] = {}
        """Both inputs of an image classifier: the one that is not given stays empty."""

        self.signature = signature or signature_of(model)
        if not kind.plain_graph:
            height, width = model.description.pipeline.output_size
            self._empty[PIXELS] = np.empty((0, height, width, 3), np.uint8)
            self._empty[TENSOR] = np.empty((0, 3, height, width), np.float32)

    @classmethod
    def on_cpu(cls, model: Model, settings: Settings, scratch: Path | None) -> "Network":
        """Opens a session in the runtime and precision that `cpu_choice` takes.

        Raises ConfigurationError.
        """
        signature = signature_of(model, scratch)
        choice = cpu_choice(model, signature, settings, scratch)
        if scratch:
            forget_others(scratch, choice.precision if choice.runtime == OPENVINO else "")
        network = cls(model, open_candidate(model, choice, settings, scratch), choice, signature)
        if len(measured := [trial for trial in choice.trials if trial.ms]) > 1:
            network._reference = cache(lambda: open_candidate(model, measured[0], settings, scratch))
        return network

    @classmethod
    def on_gpu(cls, model: Model, settings: Settings, device: "Device", provider: str) -> "Network":
        """Opens a session on the CUDA provider. Raises ConfigurationError and OutOfDeviceMemoryError."""
        check_precision(model, settings)
        precision_check.check_gpu_precision(settings.precision)
        reason = precision_check.FORCED.format(settings.precision)
        if settings.precision == "auto":
            reason = "a graph that is called with tensors keeps its file's precision"
        path = model.file(FP32)
        graph_file.check_data(model, path)
        session = OnnxRuntimeSession(device.open_graph(served_graph(model, path)), provider)
        return cls(model, session, Choice(ONNX_RUNTIME, "fp32", reason, []))

    def info(self, device: str, fallback: str | None) -> BackendInfo:
        """Returns what `/model` shows."""
        session, choice = self._session, self._choice
        assert choice is not None  # noqa: S101 made by on_cpu or on_gpu
        return BackendInfo(
            session.library,
            device,
            session.provider,
            choice.precision,
            choice.reason,
            fallback,
            choice.trials,
            session.length_step,
        )

    def infer(self, signature: Signature, inputs: Sequence[Array], shrink: bool = False) -> list[Array]:
        """Computes a batch, see `Backend.infer`.

        An output without a batch axis gets one, of size 1; an input of a graph without one is computed
        without it. The reference computes what was not compared, such as all items of a graph in which
        they depend on each other, which was compared as a batch.
        """
        if self._empty:
            return [self._image_logits(inputs[0], shrink)]
        names = [spec.name for spec in signature.outputs]
        sizes = signature.sizes([array[0] for array in inputs]).values()
        if not signature.is_batched:
            inputs = [array.reshape(array.shape[1:]) for array in inputs]
        feed = {spec.name: array for spec, array in zip(signature.inputs, inputs, strict=True)}
        is_compared = signature.is_batched == self.signature.is_batched
        is_compared &= max(sizes, default=0) <= self._largest_size and self._session.is_sure_of(feed)
        session = self._session if is_compared else self._reference()
        outputs = session.run(names, feed, shrink)
        return [
            array[None] if array.ndim == len(spec.shape) else array
            for spec, array in zip(signature.outputs, outputs, strict=True)
        ]

    def _image_logits(self, batch: Array, shrink: bool) -> Array:
        """Computes logits [N, classes] of RGB images, uint8 [N, H, W, 3], or normalised [N, 3, H, W].

        Those of a normalised image that is not finite are NaN.
        """
        name = PIXELS if batch.dtype == np.uint8 else TENSOR
        logits: Array = self._session.run((), {**self._empty, name: batch}, shrink)[0]
        if name == TENSOR:
            logits[~np.isfinite(batch.sum((1, 2, 3)))] = np.nan  # ReLU and int8 make numbers of it
        return logits

    def outputs_to_compare(self, inputs: Sequence[Array]) -> list[Array]:
        """Computes the outputs that are compared between precisions, of `precision_check.samples`.

        Raises ValueError for outputs that are not as the signature says.
        """
        outputs = self.infer(self.signature, inputs)
        if not self.signature.outputs:
            return outputs
        sizes = self.signature.sizes(next(zip(*inputs, strict=True)))
        check_outputs(self.signature, outputs, len(inputs[0]), sizes)
        by_name = dict(zip((spec.name for spec in self.signature.outputs), outputs, strict=True))
        return [by_name[name] for name in self._outputs if name in by_name] or outputs

    def trim(self) -> None:
        """Shrinks memory to the size that a small batch needs; larger items open the reference again."""
        self._reference.cache_clear()
        signature = self.signature
        for length in signature.example_lengths:
            batch = examples(signature, signature.batch_size or 1, signature.sizes_at(length))
            with contextlib.suppress(Exception):  # the runtime's: the network does not take this length
                self.infer(signature, batch, shrink=True)
                return


def signature_of(model: Model, scratch: Path | None = None) -> Signature:
    """Returns how the model's graph is called; all instances read the file once.

    Raises ConfigurationError.
    """
    if not kind_of(model.description.task).plain_graph:
        pixels = TensorSpec("pixels", "uint8", (*model.description.pipeline.output_size, 3))
        return Signature("image", (pixels,), (), normalises=True)

    def read() -> Any:
        signature = graph_signature(graph_path(model), model)
        return SIGNATURE.dump_python(signature, mode="json")

    return SIGNATURE.validate_python(shared_choice(scratch, "signature", read))


def batch_note(model: Model, precision: str, scratch: Path | None, size: int = 0) -> str:
    """Returns why items may depend on each other in a precision's file, which all instances read once.

    It is empty if none does, or if the signature says it. `size` is the batch's if it is fixed.
    """
    is_int8 = precision == "int8"
    if kind_of(model.description.task).plain_graph and not (is_int8 and model.has(FP32)):
        return ""

    def read() -> str:
        graph = read_graph(model.file(INT8 if is_int8 else FP32), model)
        forget_weights(graph.graph)
        return batch_axis.objection(graph, size)

    return shared_choice(scratch, f"batch-{'int8' if is_int8 else 'fp32'}", read)


def graph_path(model: Model) -> Path:
    """Returns the file that says how the model's graph is called. Raises ConfigurationError."""
    only_int8 = model.has(INT8) and not model.has(FP32)
    return model.file(INT8 if only_int8 else FP32)


def cpu_choice(model: Model, signature: Signature, settings: Settings, scratch: Path | None) -> Choice:
    """Chooses the runtime and the precision in which a CPU computes the model, see `choice.choose`.

    Raises ConfigurationError.
    """
    check_precision(model, settings)
    objection = openvino_objection()
    if settings.cpu_runtime == OPENVINO and objection:
        raise ConfigurationError(f"SERVING_CPU_RUNTIME=openvino cannot be used: {objection}")
    types = {spec.dtype for spec in (*signature.inputs, *signature.outputs)}
    if settings.cpu_runtime == "auto" and "float64" in types:
        objection = objection or "OpenVINO computes float64 in fp32"

    candidates = cpu_candidates(model, settings, objection)
    if signature.batch_size > 1:  # a batch is filled up to it
        note = partial(batch_note, model, "int8", scratch, signature.batch_size)
        candidates = [
            replace(each, refusal=each.refusal or note()) if each.precision == "int8" else each
            for each in candidates
        ]

    def load(candidate: Candidate) -> Infer:
        shared = scratch if candidate.runtime == OPENVINO else None  # ONNX Runtime opens a graph quickly
        session = open_candidate(model, candidate, settings, shared)
        return Network(model, session, signature=signature).outputs_to_compare

    return choose(
        candidates,
        settings,
        scratch,
        load,
        lambda: precision_check.samples(model, signature),
        memory_limit(model, settings),
    )


def cpu_candidates(model: Model, settings: Settings, objection: str) -> list[Candidate]:
    """Returns the ways to compute the model on a CPU; others must agree with the first, in fp32.

    `objection` says why OpenVINO is not used. A graph of unknown meaning is tried in fp32 only: its
    answers may be labels, and a comparison of a few does not show how far apart their numbers are.
    """
    with_bf16 = objection or openvino_objection("bf16")
    candidates = [
        Candidate(ONNX_RUNTIME, "fp32"),
        int8_candidate(model, INT8, settings, ONNX_RUNTIME),
        int8_candidate(model, INT8, settings, OPENVINO, objection, only_static=True),
        Candidate(OPENVINO, "bf16", with_bf16, precision_check.MAX_DIFFERENCE),
        Candidate(OPENVINO, "fp32", objection, precision_check.EXACT),
    ]
    if settings.precision == "auto" and not kind_of(model.description.task).compare:
        candidates = [candidate for candidate in candidates if candidate.precision == "fp32"]
    if settings.cpu_runtime == "auto":
        return candidates
    candidates.sort(key=lambda candidate: candidate.precision != "fp32")
    return [candidate for candidate in candidates if candidate.runtime == settings.cpu_runtime]


def memory_limit(model: Model, settings: Settings) -> float:
    """Returns how many MB of its own a runtime may take in each worker."""
    if settings.cpu_runtime_mb != "auto":
        return settings.cpu_runtime_mb
    path = graph_path(model)
    weights = sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*"))
    return RUNTIME_MB + WEIGHTS_SHARE * weights / 1e6


def open_candidate(
    model: Model, candidate: Candidate | Choice | Trial, settings: Settings, scratch: Path | None
) -> Session:
    """Opens the model's file for a runtime and a precision. Raises ConfigurationError."""
    path = model.file(INT8 if candidate.precision == "int8" else FP32)
    return open_session(model, path, settings, scratch, candidate.runtime, candidate.precision)


def open_session(
    model: Model,
    path: Path,
    settings: Settings,
    scratch: Path | None,
    runtime: str = ONNX_RUNTIME,
    precision: str = "fp32",
) -> Session:
    """Opens a graph of the model on the CPU; an image classifier's gets its two inputs.

    Raises ConfigurationError.
    """
    graph = partial(served_graph, model, path)
    with library_errors(f"{path} cannot be loaded"):
        graph_file.check_data(model, path)
        if runtime == OPENVINO:
            return OpenVinoSession(graph, precision, settings, scratch)
        return OnnxRuntimeSession(cpu_session(graph, settings, scratch))


def served_graph(model: Model, path: Path) -> bytes | Path:
    """Returns the graph to open for a file: its path, or what an image classifier or an encoder becomes.

    Raises ConfigurationError, and onnx's errors.
    """
    if not kind_of(model.description.task).plain_graph:
        changed = with_two_inputs(graph_file.read(path), model.description.pipeline)
    elif needs_vectors(path, model):
        changed = with_vectors(graph_file.read(path), model)
    else:
        return path
    content: bytes = changed.SerializeToString()
    return content


def check_precision(model: Model, settings: Settings) -> None:
    """Raises ConfigurationError for a precision into which no graph in tensor form is converted."""
    if settings.precision == "fp16" and kind_of(model.description.task).plain_graph:
        raise ConfigurationError(
            "SERVING_PRECISION=fp16 is for image classifiers; a graph that is called with tensors "
            "keeps its file's precision"
        )
