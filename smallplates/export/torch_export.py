"""A PyTorch network as files for both backends; for `cli/export.py` and the trainings."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import torch
import typer
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.onnx import ONNXProgram

from fastapi_pt.network import Network, build, fill
from smallplates.errors import ConfigurationError
from smallplates.export.state_dict import read_weights
from smallplates.export.stored_weights import store_weights_as_float16
from smallplates.models.description import ImagePipeline, ModelDescription


def network(
    description: ModelDescription, weights: Path, trust_pickle: bool, temperature: float
) -> Network:
    """Returns the described network with the weights of a file, its logits divided by `temperature`.

    `trust_pickle` unpickles a whole module. Raises ConfigurationError.
    """
    architecture, classes = description.architecture, len(description.labels)
    result = build(architecture, classes, description.body_size)
    state = read_weights(weights, trust_pickle)
    try:
        fill(result.body, state)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{weights} does not fit {architecture} with {classes} labels: {error}"
        ) from error
    scale_logits(result.body, 1 / temperature)
    result.eval()
    return result


def write(network: Network, image: ImagePipeline, folder: Path) -> None:
    """Writes model.safetensors and model.onnx, with the same weights. Raises ConfigurationError."""
    folder.mkdir(parents=True, exist_ok=True)
    # what ONNX Runtime serves must be what PyTorch serves: both get the rounded weights
    fill(network.body, save_weights(network.body.state_dict(), folder / "model.safetensors"))
    write_onnx(network, image, folder / "model.onnx")


def save_weights(weights: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Writes weights, the matrices in float16, for the PyTorch backend; returns what was written."""
    half = {k: v.half() if v.is_floating_point() and v.ndim > 1 else v for k, v in weights.items()}
    save_file(half, path)
    path.chmod(0o644)  # safetensors makes it readable for its owner only
    return half


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
        raise ConfigurationError(
            f"the network does not accept images of {size} pixels: {error}"
        ) from error
    graph = store_weights_as_float16(graph_of(network, {"input": example}, ["N"], "output"))
    onnx.checker.check_model(graph, full_check=True)
    path.write_bytes(graph.SerializeToString())


def graph_of(
    network: nn.Module, examples: dict[str, Tensor], axes: Sequence[str], output: str, opset: int = 18
) -> onnx.ModelProto:
    """Returns the ONNX graph of a network with one output; see `program_of`."""
    graph: onnx.ModelProto = program_of(network, examples, axes, [output], opset).model_proto
    return graph


def program_of(
    network: nn.Module,
    examples: dict[str, Tensor],
    axes: Sequence[str],
    outputs: Sequence[str],
    opset: int = 18,
    is_variadic: bool = False,
) -> ONNXProgram:
    """Exports a network; `axes` are the names of the first, dynamic axes of all inputs.

    `is_variadic` means that `forward` takes any number of tensors, `*tensors`. Raises the exporter's
    errors.
    """
    sizes = {number: torch.export.Dim(name) for number, name in enumerate(axes)}
    shapes = (sizes,) * len(examples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that two inputs share an axis, and of the exporter's age
        program = torch.onnx.export(
            network,
            tuple(examples.values()),
            dynamo=True,
            input_names=list(examples),
            output_names=list(outputs),
            dynamic_shapes=(shapes,) if is_variadic else shapes,
            opset_version=opset,
            verbose=False,
        )
    assert program is not None  # noqa: S101 dynamo=True returns one
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # the exporter's stack traces, with this machine's paths
    return program


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
