"""Network of a model description: a torchvision architecture behind an optional reduction of its input.

An export from Hugging Face has a network of its own, see `huggingface.py`.

Used by the backend and by `training/`.
"""

from collections import OrderedDict
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import torch
import torchvision
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse
from torch.nn import functional
from torchvision.models import get_model, list_models

from fastapi_pt import huggingface
from smallplates.errors import ConfigurationError
from smallplates.models.description import ImagePipeline
from smallplates.models.folder import Model

CHANNELS_LAST: Any = {"memory_format": torch.channels_last}  # unknown to torch's own stub


class Normalise(nn.Module):
    """Normalises uint8 images [N, H, W, 3] to float32 [N, 3, H, W]."""

    def __init__(self, pipeline: ImagePipeline) -> None:
        super().__init__()
        mean, std = torch.tensor(pipeline.mean), torch.tensor(pipeline.std)
        self.scale: Tensor
        self.shift: Tensor
        self.register_buffer("scale", (1 / (255 * std)).view(1, 3, 1, 1))
        self.register_buffer("shift", (-mean / std).view(1, 3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """Computes (pixel / 255 - mean) / std; the result is channels-last in memory."""
        return pixels.permute(0, 3, 1, 2).float() * self.scale + self.shift


class Reduce(nn.Module):
    """Reduces [N, C, H, W] to [N, C, size, size]: means if `size` divides the sides, else bilinear."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """Reduces without antialiasing: images must have no finer detail than `size` pixels show."""
        height, width = images.shape[-2:]
        if height == width and height % self.size == 0:
            return functional.avg_pool2d(images, height // self.size)
        return functional.interpolate(images, (self.size, self.size), mode="bilinear")


class Network(nn.Module):
    """Reduction, then the architecture in `body`."""

    def __init__(self, body: nn.Module, body_size: int | None) -> None:
        super().__init__()
        self.reduce: nn.Module = Reduce(body_size) if body_size else nn.Identity()
        self.body = body

    def forward(self, images: Tensor) -> Tensor:
        """Computes logits [N, classes] of normalised images [N, 3, H, W]."""
        logits: Tensor = self.body(self.reduce(images))
        return logits


def build(architecture: str | None, classes: int, body_size: int | None) -> Network:
    """Builds an untrained network. Raises ConfigurationError if torchvision has no such classifier."""
    known = list_models(torchvision.models)  # no detection, segmentation, video or quantized networks
    if architecture is None or architecture not in known:
        near = get_close_matches(str(architecture).lower(), known)
        hint = f"; similar names: {', '.join(near)}" if near else ""
        raise ConfigurationError(f"torchvision has no classifier named {architecture!r}{hint}")
    return Network(get_model(architecture, weights=None, num_classes=classes), body_size)


def fill(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Loads weights, in float32. Raises ConfigurationError if they do not fit."""
    own_state = network.state_dict()
    missing, unknown = own_state.keys() - weights.keys(), weights.keys() - own_state.keys()
    shaped = [
        name
        for name in own_state.keys() & weights.keys()
        if own_state[name].shape != weights[name].shape
    ]
    reasons = []
    if missing:
        reasons.append(f"{len(missing)} tensors are missing, such as {min(missing)}")
    if unknown:
        reasons.append(f"{len(unknown)} tensors have unknown names, such as {min(unknown)}")
    if shaped:
        name = min(shaped)
        own_shape, shape = list(own_state[name].shape), list(weights[name].shape)
        reasons.append(f"{name} has the shape {shape} instead of {own_shape}")
    if reasons:
        raise ConfigurationError("; ".join(reasons))
    state = OrderedDict((name, tensor.float()) for name, tensor in weights.items())
    state._metadata = own_state._metadata  # type: ignore[attr-defined]  # the layers' versions; MNASNet asks
    network.load_state_dict(state)


def read_network(model: Model) -> Network:
    """Builds the described architecture with `model.safetensors`, in eval mode.

    Raises ConfigurationError.
    """
    path, description = model.file("model.safetensors"), model.description
    network = build(description.architecture, len(description.labels), description.body_size)
    try:
        fill(network.body, load_file(path))
    except (SafetensorError, ConfigurationError) as error:
        raise ConfigurationError(f"{path} does not fit {description.architecture}: {error}") from error
    network.eval()
    return network


def served_network(model: Model) -> nn.Module:
    """Reads what computes the logits of images, in eval mode, batch norm folded where that is known.

    Raises ConfigurationError.
    """
    if huggingface.is_export(model):
        return huggingface.image_network(model)
    return fold(read_network(model))


def fold(network: Network) -> Network:
    """Folds batch norm into the convolutions before it, in place; returns the network."""
    network.body = fuse(network.body)
    return network
