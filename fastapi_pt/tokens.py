"""Network of texts, on a CPU or on a GPU; used by `backend.py`."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fastapi_pt.cpu import Inputs, optimise, use_threads
from fastapi_pt.cuda import in_half
from fastapi_pt.huggingface import ByName, token_network
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.models.tensors import Array, Signature, put_at_end
from smallplates.settings import Settings
from smallplates.worker import precision_check
from smallplates.worker.device_errors import translate_errors
from smallplates.worker.independence import vocabulary

EXAMPLES = ((2, 32), (1, 1), (2, 2), (1, 3), (1, 7), (1, 16), (3, 47))
"""Texts and tokens of each; the first is timed."""

SAMPLES = ((256, 32),)
"""Texts and tokens that are compared with fp16 at a time."""


class TokenNetwork:
    """Network that computes padded batches of any size."""

    def __init__(
        self, network: ByName, settings: Settings, device: torch.device, precision: str, reason: str
    ) -> None:
        """Takes a network on the device."""
        self._inputs, self._outputs = network.inputs, network.outputs
        self._bounds = bounds(network)
        self._threads = settings.threads
        self._device = device
        self._compute: torch.nn.Module = network
        self.precision, self.reason = precision, reason

    @classmethod
    def on_cpu(
        cls, model: Model, settings: Settings, scratch: Path | None, device: torch.device
    ) -> "TokenNetwork":
        """Reads the network, in its faster form. Raises ConfigurationError."""
        if settings.precision not in ("auto", "fp32"):
            raise ConfigurationError(
                f"SERVING_PRECISION={settings.precision} is not supported for texts "
                "with PyTorch on a CPU"
            )
        use_threads(settings.threads)
        network = token_network(model)
        tokens = cls(network, settings, device, "fp32", "PyTorch computes texts in fp32 on a CPU")
        tokens._compute = optimise(network, examples(model, network), scratch)
        return tokens

    @classmethod
    def on_gpu(
        cls,
        model: Model,
        settings: Settings,
        scratch: Path | None,  # noqa: ARG003 as on a CPU
        device: torch.device,
    ) -> "TokenNetwork":
        """Reads the network, in fp16 where that agrees. Raises ConfigurationError.

        Raises OutOfDeviceMemoryError, too.
        """
        precision_check.check_gpu_precision(settings.precision)
        network = token_network(model)
        torch.cuda.set_per_process_memory_fraction(settings.gpu_memory_fraction, device)
        with translate_errors():

            def texts(seed: int) -> list[Tensor]:
                return [tensor.to(device) for tensor in examples(model, network, SAMPLES, seed)[0]]

            network = network.to(device)
            network, precision, reason = in_half(model, network, texts, settings.precision)
        return cls(network, settings, device, precision, reason)

    def infer(self, signature: Signature, inputs: Sequence[Array]) -> list[Array]:
        """Computes a batch, see `Backend.infer`.

        Raises ValueError for what is no token: on a GPU it would end the process.
        """
        arrays = {spec.name: array for spec, array in zip(signature.inputs, inputs, strict=True)}
        for name, count in self._bounds.items():
            if arrays[name].min() < 0 or arrays[name].max() >= count:
                raise ValueError(f"{name} must be from 0 to {count - 1}")
        use_threads(self._threads)
        with translate_errors(), torch.inference_mode():
            tensors = [torch.from_numpy(arrays[name]).to(self._device) for name in self._inputs]
            by_name = dict(zip(self._outputs, self._compute(*tensors), strict=True))
            return [by_name[spec.name].float().cpu().numpy() for spec in signature.outputs]


def bounds(network: ByName) -> dict[str, int]:
    """Returns how many values each input may have, where the network has embeddings of them."""
    config = network.network.config
    sizes = {"input_ids": "vocab_size", "token_type_ids": "type_vocab_size"}
    limits = {name: getattr(config, sizes[name], 0) for name in network.inputs if name in sizes}
    return {name: count for name, count in limits.items() if count}


def examples(
    model: Model, network: ByName, sizes: Sequence[tuple[int, int]] = EXAMPLES, seed: int = 0
) -> list[Inputs]:
    """Returns batches of texts of some sizes, one of them padded in each batch; others for every seed.

    Their tokens are as in `independence.with_checked_texts`, and no text is shorter than its special
    tokens: some networks search for these.
    """
    size, ending = vocabulary(model)
    most = model.description.text_pipeline.max_tokens
    batches = []
    for count, length in sizes:
        refuses = getattr(network.network.config, "pad_token_id", 0) is None  # as transformers does
        count, length = 1 if refuses else count, min(max(length, len(ending)), most)
        mask = torch.ones(count, length, dtype=torch.int64)
        mask[0, max(length + 1, 2 * len(ending)) // 2 :] = 0
        words = (
            size // 2 + (seed * count * length + torch.arange(count * length)) % (size - size // 2)
        ).view(count, length) * mask
        for row, end in zip(words.numpy(), mask.sum(1).tolist(), strict=True):
            put_at_end(row[:end], ending)
        values: dict[str, Tensor] = {"input_ids": words, "attention_mask": mask}
        batches.append(tuple(values.get(name, torch.zeros_like(mask)) for name in network.inputs))
    return batches
