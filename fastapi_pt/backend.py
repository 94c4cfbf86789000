"""PyTorch backend, on the CPU or a CUDA GPU; the engine's workers load and call it."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from fastapi_pt import huggingface
from fastapi_pt.cpu import INT8, PLAIN, CpuNetwork
from fastapi_pt.cuda import CudaNetwork, in_half
from fastapi_pt.huggingface import signature_of, token_network
from fastapi_pt.network import CHANNELS_LAST, Normalise, served_network
from fastapi_pt.tokens import TokenNetwork
from smallplates.engine.backend import BackendInfo, Trial
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.models.huggingface import CONFIG
from smallplates.models.task_kinds import kind_of
from smallplates.models.tensors import Array, Signature
from smallplates.settings import Settings
from smallplates.system.cpus import bf16_objection
from smallplates.worker import precision_check
from smallplates.worker.choice import Candidate, Choice, choose, device_for, int8_candidate
from smallplates.worker.device_errors import translate_errors
from smallplates.worker.independence import with_checked_texts
from smallplates.worker.precision_check import IMAGE, Infer

TORCH = "torch"


class TorchBackend:
    """Backend with `CpuNetwork` on a CPU, `CudaNetwork` on a GPU, `TokenNetwork` for texts."""

    def __init__(self) -> None:
        self._network: CpuNetwork | CudaNetwork | TokenNetwork | None = None

    def signature(self, model: Model) -> Signature:
        """Returns how a network of texts is called with its own tensors. Raises ConfigurationError."""
        if not kind_of(model.description.task).outputs:
            raise ConfigurationError("PyTorch cannot serve ONNX graphs; use fastapi_onnx")
        return signature_of(model)

    def compare_items(self, model: Model, signature: Signature) -> Iterator[Signature]:
        """See `GraphReader`; raises ConfigurationError."""
        network = token_network(model)

        def infer(inputs: Sequence[Array]) -> Sequence[Array]:
            with torch.inference_mode():
                return [output.numpy() for output in network(*map(torch.from_numpy, inputs))]

        return with_checked_texts(model, infer, signature)

    def weights(self, model: Model) -> Iterable[Path]:
        """See `WeightsReader`; raises ConfigurationError."""
        path, int8 = huggingface.weights(model), [model.file(INT8)] if model.has(INT8) else []
        return {path, *int8, *path.parent.glob("*.safetensors"), *model.folder.glob(CONFIG)}

    def load(self, model: Model, settings: Settings, scratch: Path | None = None) -> BackendInfo:
        """Loads the model's weights. Raises ConfigurationError, also for `device=cuda` without CUDA."""
        device, fallback = choose_device(device_for(settings), *settings.devices[:1])
        trials: list[Trial] = []
        if kind_of(model.description.task).plain_graph:
            on_device = TokenNetwork.on_cpu if device.type == "cpu" else TokenNetwork.on_gpu
            self._network = network = on_device(model, settings, scratch, device)
            precision, reason = network.precision, network.reason
        elif device.type == "cuda":
            precision, reason = self._load_on_gpu(model, settings, device)
        else:
            choice = self._load_on_cpu(model, settings, scratch)
            precision, reason, trials = choice.precision, choice.reason, choice.trials
        return BackendInfo(
            backend=f"torch {torch.__version__}",
            device=str(device),
            execution_provider=device.type,
            precision=precision,
            precision_reason=reason,
            fallback=fallback,
            trials=trials,
        )

    def _load_on_cpu(self, model: Model, settings: Settings, scratch: Path | None) -> Choice:
        """Makes `CpuNetwork`; returns its precision, and why. Raises ConfigurationError."""

        def load(candidate: Candidate) -> Infer:
            network = CpuNetwork(model, settings, None, candidate.precision, PLAIN)
            return lambda inputs: [network.infer(*inputs)]

        choice = choose(
            [
                Candidate(TORCH, "fp32"),
                int8_candidate(model, INT8, settings, TORCH),
                Candidate(TORCH, "bf16", bf16_objection(), precision_check.MAX_DIFFERENCE),
            ],
            settings,
            scratch,
            load,
            lambda: precision_check.samples(model, IMAGE),
        )
        self._network = CpuNetwork(model, settings, scratch, choice.precision)
        return choice

    def _load_on_gpu(self, model: Model, settings: Settings, device: torch.device) -> tuple[str, str]:
        """Makes `CudaNetwork`; returns its precision, and the reason.

        Raises ConfigurationError and OutOfDeviceMemoryError.
        """
        precision_check.check_gpu_precision(settings.precision)
        network = served_network(model)
        torch.cuda.set_per_process_memory_fraction(settings.gpu_memory_fraction, device)
        torch.backends.cudnn.allow_tf32 = False  # fp32 means full precision
        size, classes = model.description.pipeline.output_size, len(model.labels)
        with translate_errors():
            network = network.to(device, **CHANNELS_LAST)
            normalise = Normalise(model.description.pipeline).to(device)

            def images(seed: int) -> list[torch.Tensor]:
                pixels = precision_check.sample_images(size, seed)
                return [normalise(torch.from_numpy(pixels).to(device))]

            network, precision, reason = in_half(model, network, images, settings.precision)
            self._network = CudaNetwork(network, normalise, size, classes, graphs=settings.cuda_graphs)
        return precision, reason

    def infer(self, signature: Signature, inputs: Sequence[Array]) -> Sequence[Array]:
        """Computes a batch, see `Backend.infer`: of texts, images or normalised images."""
        assert self._network is not None  # noqa: S101 load comes first
        if isinstance(self._network, TokenNetwork):
            return self._network.infer(signature, inputs)
        return [self._network.infer(*inputs)]

    def trim(self) -> None:
        """Empties PyTorch's cache of GPU memory; a CPU has none."""
        if isinstance(self._network, CudaNetwork | TokenNetwork):
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Drops the network and frees the GPU's memory."""
        network, self._network = self._network, None
        if isinstance(network, CudaNetwork):
            network.close()
        if isinstance(network, CudaNetwork | TokenNetwork):
            del network
            torch.cuda.empty_cache()


def choose_device(name: str, index: int = 0) -> tuple[torch.device, str | None]:
    """Returns the device, and why `auto` fell back to the CPU, else None.

    Raises ConfigurationError if `cuda` cannot be used.
    """
    if name == "cpu":
        return torch.device("cpu"), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a broken driver is reported below, in words
        usable = torch.cuda.is_available()
    if torch.version.cuda is None:
        reason = "this torch is built without CUDA"
    elif not usable:
        reason = f"torch is built for CUDA {torch.version.cuda} but finds no usable GPU or driver"
    else:
        try:
            device = torch.device("cuda", index)
            torch.ones(1, device=device).add(1).cpu()
            return device, None
        except RuntimeError as error:  # no such GPU, too old for this torch, or full
            reason = str(error)
    if name == "cuda":
        raise ConfigurationError(f"CUDA cannot be used: {reason}")
    return torch.device("cpu"), reason
