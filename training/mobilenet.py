"""MobileNetV2 from ImageNet's weights, for `food11.py`."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import mobilenet_v2

from training.data import Kind

ARCHITECTURE = "mobilenet_v2"
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@cache  # a new tensor from the CPU's memory would wait for a GPU
def moments(device: torch.device) -> tuple[Tensor, ...]:
    """Returns mean and standard deviation, [1, 3, 1, 1]."""
    return tuple(torch.tensor(triple, device=device).view(1, 3, 1, 1) for triple in (MEAN, STD))


def normalise(photos: Tensor) -> Tensor:
    """Normalises [N, 3, H, W] in [0, 1] to zero mean and unit variance, channels last in memory."""
    mean, std = moments(photos.device)
    return ((photos - mean) / std).contiguous(memory_format=torch.channels_last)


def layers_of(model: nn.Module) -> Iterator[tuple[str, nn.Conv2d, nn.BatchNorm2d]]:
    """Yields each convolution, its name first, with the batch norm behind it."""
    convolution = None
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d):
            convolution = name, layer
        elif isinstance(layer, nn.BatchNorm2d) and convolution:
            yield *convolution, layer


def read(weights: Path) -> dict[str, Tensor]:
    """Reads weights whose batch norm is folded: ImageNet's `.npz`, or a `model.safetensors` of ours.

    In the latter, the convolutions' biases are what `fold` left of batch norm.
    """
    if weights.suffix == ".npz":
        with np.load(weights) as given:
            return {name: torch.from_numpy(given[name]) for name in given.files}
    state: dict[str, Tensor] = load_file(weights)
    for name in [name for name in state if name.endswith("running_mean")]:
        norm = name.rpartition(".")[0]
        parent, _, number = norm.rpartition(".")
        state[f"{parent}.{int(number) - 1}.bias"] = state[f"{norm}.bias"]
    return state


@torch.no_grad()
def start(weights: Path, outputs: int, classes: int, photos: Tensor) -> nn.Module:
    """Builds the network from weights whose batch norm is folded, with a new last layer.

    Of the last layer, the rows of the classes are kept if the weights have as many.

    Batch norm is rebuilt from `photos` [N, 3, H, W] in [0, 1], such that the network's function stays
    the same: each channel's mean and standard deviation become the layer's statistics, and undo them.
    """
    model: nn.Module = mobilenet_v2(num_classes=outputs)
    layers = list(layers_of(model))
    found: dict[nn.Module, list[Tensor]] = {layer: [] for _, layer, _ in layers}

    def measure(layer: nn.Module, _: object, output: Tensor) -> None:
        found[layer].append(torch.stack([output.mean((0, 2, 3)), output.square().mean((0, 2, 3))]))

    hooks = []
    given = read(weights)
    biases = [given[f"{name}.bias"] for name, _, _ in layers]
    for (name, convolution, norm), bias in zip(layers, biases, strict=True):
        convolution.weight.copy_(given[f"{name}.weight"])
        norm.bias.copy_(bias)  # what was folded, until it is measured
        norm.state_dict()["running_var"].fill_(1 - norm.eps)
        hooks.append(convolution.register_forward_hook(measure))
    if len(given["classifier.1.bias"]) == classes:
        for name in ("classifier.1.weight", "classifier.1.bias"):
            model.state_dict()[name][:classes] = given[name]
    model.eval()
    for part in photos.split(64):
        model(normalise(part))
    for hook in hooks:
        hook.remove()
    for (_, convolution, norm), bias in zip(layers, biases, strict=True):
        mean, square = torch.stack(found[convolution]).mean(0)
        variance = (square - mean.square() - norm.eps).clamp(min=0)
        norm.load_state_dict(
            {
                "running_mean": mean,
                "running_var": variance,
                "weight": (variance + norm.eps).sqrt(),
                "bias": mean + bias,
                "num_batches_tracked": torch.tensor(0),
            }
        )
    return channels_last(model)


def channels_last(model: Any) -> nn.Module:  # torch does not describe it for modules
    """Returns the network with weights whose channels are last in memory."""
    result: nn.Module = model.to(memory_format=torch.channels_last)
    return result


@torch.no_grad()
def logits(model: nn.Module, photos: Tensor, sides: tuple[int, ...]) -> Tensor:
    """Computes outputs [N, outputs] of uint8 photos, resized to each of `sides` in turn."""
    parts = []
    for part in photos.split(256):
        batch = part.float() / 255
        for side in sides:
            batch = functional.interpolate(batch, size=side, mode="bilinear", antialias=True)
        with torch.autocast(photos.device.type, dtype=torch.bfloat16):
            parts.append(model(normalise(batch)).float())
    return torch.cat(parts)


@torch.no_grad()
def fold(model: nn.Module) -> None:
    """Moves batch norm's factors into the convolutions, and rounds the products to 16 bits.

    What is left of batch norm is a sum, with the same names of weights. ONNX' exporter folds, too: both
    backends' files, whose weights have 16 bits, would else be rounded before and after it.
    """
    for _, convolution, norm in layers_of(model):
        state = norm.state_dict()
        factor = state["weight"] / (state["running_var"] + norm.eps).sqrt()
        convolution.weight.copy_((convolution.weight * factor[:, None, None, None]).half())
        state["bias"].sub_(state["running_mean"] * factor)
        state["weight"].fill_(1)
        state["running_mean"].fill_(0)
        state["running_var"].fill_(1 - norm.eps)


def accuracy(model: nn.Module, kind: Kind, sides: tuple[int, ...], classes: int) -> float:
    """Computes the share of photos whose class has the highest output, resized as by `logits`."""
    named = logits(model, kind.photos, sides)[:, :classes].argmax(1)
    return float((named == kind.classes).float().mean())
