"""Turns weights into a model folder that the service can load.

`python -m training.export torchvision --weights FILE ...` takes a state dict (safetensors, or a
`.pt` file that holds only tensors), `python -m training.export onnx --file FILE ...` an ONNX file.
Both write `OUT/model.json` and `OUT/VERSION/...`; `training.evaluate` adds the accuracy.
"""

import hashlib
from pathlib import Path
from typing import Annotated

import onnx
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fastapi_pt.network import build
from serving.model import ImagePipeline, ModelDescription
from training.float16_weights import store_weights_as_float16

app = typer.Typer(help=__doc__, no_args_is_help=True)

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Labels = Annotated[Path, typer.Option(help="Text file, one label a line, in the outputs' order.")]
Out = Annotated[Path, typer.Option(help="The model's folder; made where it does not exist.")]
Resize = Annotated[str, typer.Option(help="Short side in pixels, or HEIGHTxWIDTH.", metavar="N or HxW")]
CenterCrop = Annotated[int | None, typer.Option(help="Side of the centre crop, in pixels.")]
Enlarge = Annotated[str | None, typer.Option(help="HEIGHTxWIDTH after the crop.", metavar="HxW")]
Triple = tuple[float, float, float]


def size(text: str) -> tuple[int, int]:
    """`224x224` -> (224, 224)."""
    try:
        height, width = text.lower().split("x")
        return int(height), int(width)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not HEIGHTxWIDTH") from error


def pipeline(
    resize: str, center_crop: int | None, enlarge: str | None, mean: Triple, std: Triple
) -> ImagePipeline:
    """The image pipeline of the command line's options."""
    return ImagePipeline(
        resize=int(resize) if resize.isdecimal() else size(resize),
        center_crop=center_crop,
        enlarge=size(enlarge) if enlarge else None,
        mean=mean,
        std=std,
    )


def read_labels(path: Path) -> list[str]:
    """One label a line; empty lines do not count."""
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


def read_weights(path: Path, trust_pickle: bool) -> dict[str, Tensor]:
    """A state dict. Without `trust_pickle` nothing is unpickled but tensors."""
    if path.suffix == ".safetensors":
        return load_file(path)
    loaded = torch.load(path, map_location="cpu", weights_only=not trust_pickle)
    if isinstance(loaded, nn.Module):
        loaded = loaded.state_dict()
    tensors: dict[str, Tensor] = loaded.get("state_dict", loaded)
    return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}


def write_onnx(network: nn.Module, image: ImagePipeline, path: Path) -> None:
    """float `input` [N, 3, H, W] -> `output` [N, classes], N dynamic, weights stored as float16."""
    example = torch.zeros(2, 3, *image.output_size)
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


def write_description(out: Path, description: ModelDescription) -> None:
    """`model.json`, with the digest of every file of the version."""
    folder = out / description.version
    description.files = {
        f"{description.version}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir())
    }
    (out / "model.json").write_text(description.model_dump_json(indent=2, exclude_none=True) + "\n")
    typer.echo(f"wrote {out}")


@app.command("torchvision")
def from_torchvision(
    weights: Annotated[Path, typer.Option(help="State dict: .safetensors or .pt.")],
    labels: Labels,
    out: Out,
    name: Annotated[str, typer.Option(help="The model's name.")],
    architecture: str = "mobilenet_v2",
    version: str = "1",
    resize: Resize = "224x224",
    center_crop: CenterCrop = None,
    enlarge: Enlarge = None,
    mean: Triple = IMAGENET_MEAN,
    std: Triple = IMAGENET_STD,
    body_size: Annotated[
        int | None, typer.Option(help="Side to which the network reduces its input.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Divides the logits: calibration.")] = 1.0,
    i_trust_this_pickle: Annotated[
        bool,
        typer.Option(
            "--i-trust-this-pickle",
            help="DANGER: unpickle a whole module. Its author can run any code on this machine.",
        ),
    ] = False,
) -> None:
    """A state dict of a torchvision architecture -> both backends' files."""
    names = read_labels(labels)
    image = pipeline(resize, center_crop, enlarge, mean, std)
    network = build(architecture, len(names), body_size)
    network.body.load_state_dict(
        {k: v.float() for k, v in read_weights(weights, i_trust_this_pickle).items()}
    )
    scale_logits(network.body, 1 / temperature)
    network.eval()
    folder = out / version
    folder.mkdir(parents=True, exist_ok=True)
    body = network.body.state_dict().items()
    half = {k: v.half() if v.is_floating_point() and v.ndim > 1 else v for k, v in body}
    save_file(half, folder / "model.safetensors")
    (folder / "model.safetensors").chmod(0o644)  # safetensors leaves it to its owner alone
    # what ONNX Runtime serves must be what PyTorch serves: both get the rounded weights
    network.body.load_state_dict({k: v.float() for k, v in half.items()})
    write_onnx(network, image, folder / "model.onnx")
    write_description(
        out,
        ModelDescription(
            name=name,
            version=version,
            labels=names,
            image=image,
            architecture=architecture,
            body_size=body_size,
            files={},
        ),
    )


@app.command("onnx")
def from_onnx(
    file: Annotated[Path, typer.Option(help="float [N, 3, H, W] in, logits [N, classes] out.")],
    labels: Labels,
    out: Out,
    name: Annotated[str, typer.Option(help="The model's name.")],
    version: str = "1",
    resize: Resize = "224x224",
    center_crop: CenterCrop = None,
    enlarge: Enlarge = None,
    mean: Triple = IMAGENET_MEAN,
    std: Triple = IMAGENET_STD,
) -> None:
    """An ONNX file and its labels -> a folder for the ONNX backend."""
    onnx.checker.check_model(str(file), full_check=True)
    folder = out / version
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.load(file), folder / "model.onnx")  # one file, also where weights lay beside it
    write_description(
        out,
        ModelDescription(
            name=name,
            version=version,
            labels=read_labels(labels),
            image=pipeline(resize, center_crop, enlarge, mean, std),
            files={},
        ),
    )


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


if __name__ == "__main__":
    app()
