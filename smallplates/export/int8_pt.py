"""Static quantisation of a torchvision network by `torch.ao`, for the PyTorch backend; for `int8.py`.

The result is TorchScript: it holds the quantised layers, and the service needs none of these tools.
The first layers may stay in fp32: in most networks they cost most accuracy in int8. The biases of the
others are corrected for what rounding the weights does to the mean of each channel.
"""

import copy
import io
import warnings
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.ao.nn.intrinsic import ConvReLU2d
from torch.ao.quantization import (
    QConfig,
    default_per_channel_weight_observer,
    get_default_qconfig,
    get_default_qconfig_mapping,
)
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
from torch.fx import GraphModule

from fastapi_pt.cpu import ENGINE
from fastapi_pt.network import CHANNELS_LAST, Normalise, read_network
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model

METHOD = f"torch.ao, {ENGINE}"
HEAVY = (nn.Conv2d, nn.Linear)
WEIGHTS = default_per_channel_weight_observer.with_args(quant_min=-127, quant_max=127)
"""The library's own range begins at -128, and a channel's largest weight, 127.5 steps, is clipped."""


def write(model: Model, pixels: NDArray[np.uint8], out: Path, first: int) -> list[str]:
    """Quantises the network with photos [N, height, width, 3] and writes it.

    Returns the names of the layers that stay in fp32: the `first` ones, or all but one if there are
    fewer. Raises ConfigurationError for a network that the library cannot take.
    """
    network = read_network(model)
    torch.backends.quantized.engine = ENGINE
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the tools' age
            normalise = Normalise(model.description.pipeline)
            images = [normalise(torch.from_numpy(image[np.newaxis])) for image in pixels]
            example = images[0]
            heavy = [n for n, layer in network.body.named_modules() if isinstance(layer, HEAVY)]
            fp32_layers = heavy[:-1][:first]
            body = with_observers(network.body, network.reduce(example), fp32_layers)
            lost = watch_means_lost(body)
            for image in images:
                body(network.reduce(image))
            for layer, means in lost.items():
                if means:  # attention uses the weights of its last layer without calling it
                    mean = torch.stack(means).mean(0)
                    layer.bias = nn.Parameter(mean if layer.bias is None else layer.bias + mean)
            network.body = convert_fx(body)
            script = torch.jit.trace(network, example.contiguous(**CHANNELS_LAST))
            save(torch.jit.freeze(script), out)
    except Exception as error:  # FX and the quantiser raise every type
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigurationError(f"torch.ao cannot quantise the network: {reason}") from error
    return fp32_layers


def with_observers(body: nn.Module, example: Tensor, fp32_layers: list[str]) -> GraphModule:
    """Returns the network with observers of its activations, to be run on photos.

    ReLU6 becomes a part of the convolution before it, as ReLU does: numbers from 0 to 6 are what the
    convolution's uint8 output can hold. Else it would hold what is clipped next, less precisely.
    """
    with_relu = copy.deepcopy(body)
    for name in [name for name, layer in body.named_modules() if isinstance(layer, nn.ReLU6)]:
        activation = nn.ReLU().eval()
        setattr(activation, "clips", True)  # noqa: B010 a mark, which the library keeps
        with_relu.set_submodule(name, activation)
    mapping = get_default_qconfig_mapping(ENGINE)
    mapping.set_global(QConfig(get_default_qconfig(ENGINE).activation, WEIGHTS))
    for name in fp32_layers:
        mapping.set_module_name(name, None)
    options = mapping, (example,)
    result = prepare_fx(with_relu, *options)
    pairs = [layer for layer in result.modules() if isinstance(layer, ConvReLU2d)]
    clips = [layer for layer in pairs if hasattr(layer[1], "clips")]
    if len(clips) < sum(hasattr(layer, "clips") for layer in with_relu.modules()):
        return prepare_fx(body, *options)  # one is behind something else
    for layer in clips:
        layer.register_forward_hook(lambda _layer, _inputs, output: output.clamp(max=6))
    return result


def watch_means_lost(body: nn.Module) -> dict[nn.Conv2d | nn.Linear, list[Tensor]]:
    """Returns the layers to be in int8; each adds to its list what rounding its weights takes from the
    mean of each channel [C], whenever it is called.

    (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019,
    section 4.2)
    """
    lost: dict[nn.Conv2d | nn.Linear, list[Tensor]] = {}

    def measure(
        errors: nn.Module, means: list[Tensor], _layer: object, inputs: tuple[Tensor], _output: object
    ) -> None:
        output = errors(*inputs)
        channels = 1 if isinstance(errors, nn.Conv2d) else output.dim() - 1
        means.append(output.transpose(0, channels).flatten(1).mean(1))

    for layer in body.modules():
        if isinstance(layer, HEAVY) and getattr(layer, "qconfig", None):
            observer = WEIGHTS()
            observer(layer.weight)
            scales, zeros = observer.calculate_qparams()
            rounded = torch.fake_quantize_per_channel_affine(
                layer.weight, scales, zeros.int(), 0, observer.quant_min, observer.quant_max
            )
            errors = copy.deepcopy(layer)
            errors.weight, errors.bias = nn.Parameter(layer.weight - rounded), None
            lost[layer] = []
            layer.register_forward_hook(partial(measure, errors, lost[layer]))
    return lost


def save(network: torch.jit.ScriptModule, out: Path) -> None:
    """Writes TorchScript without where its code came from, which names this machine's folders."""
    buffer = io.BytesIO()
    torch.jit.save(network, buffer)
    with zipfile.ZipFile(buffer) as whole, zipfile.ZipFile(out, "w") as rest:
        for entry in whole.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                rest.writestr(entry.filename, whole.read(entry))
