"""A torchvision network with given weights, as files for both backends; for `export.py`."""

from pathlib import Path

import onnx
import torch
import typer
from safetensors.torch import save_file
from torch import nn

from fastapi_pt.network import Network, build, fill
from serving.description import ImagePipeline, ModelDescription
from serving.errors import ConfigurationError
from training.float16_weights import store_weights_as_float16
from training.state_dict import read_weights


def network(
    description: ModelDescription, weights: Path, is_trusted: bool, temperature: float
) -> Network:
    """Returns the described network with the weights of a file, its logits divided by `temperature`.

    `is_trusted` unpickles a whole module. Raises ConfigurationError.
    """
    architecture, classes = description.architecture, len(description.labels)
    made = build(architecture, classes, description.body_size)
    state = read_weights(weights, is_trusted)
    try:
        fill(made, state)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{weights} does not fit {architecture} with {classes} labels: {error}"
        ) from error
    scale_logits(made.body, 1 / temperature)
    made.eval()
    return made


def write(made: Network, image: ImagePipeline, folder: Path) -> None:
    """Writes model.safetensors and model.onnx, with the same weights. Raises ConfigurationError."""
    folder.mkdir(parents=True, exist_ok=True)
    body = made.body.state_dict().items()
    half = {k: v.half() if v.is_floating_point() and v.ndim > 1 else v for k, v in body}
    save_file(half, folder / "model.safetensors")
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable for its owner only
    fill(made, half)  # what ONNX Runtime serves must be what PyTorch serves: the rounded weights
    write_onnx(made, image, folder / "model.onnx")


def write_onnx(network: nn.Module, image: ImagePipeline, path: Path) -> None:
    """Writes an ONNX file, float `input` [N, 3, H, W], `output` [N, classes], weights in float16.

    N is dynamic. Raises ConfigurationError if the network does not take images of that size.
    """
    example = torch.zeros(2, 3, *image.output_size)
    try:
        with torch.inference_mode():
            network(example)
    except (AssertionError, RuntimeError) as error:
        size = "x".join(map(str, image.output_size))
        raise ConfigurationError(f"the network takes no pictures of {size} pixels: {error}") from error
    program = torch.onnx.export(
        network,
        (example,),
        dynamo=True,
        input_names=["input"],
        output_names=["output"],
        dynamic_shapes=({0: torch.export.Dim("N")},),
        opset_version=18,
        verbose=False,
    )
    assert program is not None  # noqa: S101 dynamo=True returns one
    graph = store_weights_as_float16(program.model_proto)
    onnx.checker.check_model(graph, full_check=True)
    path.write_bytes(graph.SerializeToString())


def scale_logits(body: nn.Module, factor: float) -> None:
    """Multiplies the last linear layer: softmax of the result is the calibrated probability.

    Temperature scaling (Guo et al., 2017) without another node in the graph.
    """
    if factor == 1:
        return
    layers = [module for module in body.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise typer.BadParameter("a temperature needs a network that ends in a linear layer")
    with torch.no_grad():
        for parameter in layers[-1].parameters():
            parameter.mul_(factor)
