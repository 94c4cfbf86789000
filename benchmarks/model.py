"""Model with random weights, with which servers are compared: MobileNetV2 at 224x224."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import nn

EXAMPLES = 8
FOLDER = Path("runs/benchmark-model")


def ensure(folder: Path) -> Path:
    """Returns `folder`, and makes the model first where `folder` is `FOLDER` and holds none.

    Raises typer.BadParameter for any other folder without a `model.json`: it may be misspelt.
    """
    if (folder / "model.json").exists():
        return folder
    if folder != FOLDER:
        raise typer.BadParameter(f"there is no model.json in {folder}")
    main(folder)
    return folder


def fit_normalisation(network: "nn.Module") -> None:
    """Sets the statistics of batch normalisation from noise.

    Without them, random weights shrink the logits to nothing, and every image has the same answer.
    """
    import torch  # here, because most commands of this program do not need it

    layers = [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for layer in layers:
        layer.momentum = None  # the mean of what was seen
        layer.reset_running_stats()
    network.train()
    with torch.no_grad():
        network(torch.randn(EXAMPLES, 3, 224, 224))
    network.eval()


TUTORIAL_NAMES = {
    "aliases": {"food_classifier": "request", "food_classifier_onnx": "tensor"},
    "names": {"image": "INPUT_IMAGE", "label": "FOOD_LABEL"},
}
"""Names by which the requests of the benchmarks ask every model, as Triton's repository has them."""


def main(
    out: Annotated[Path, typer.Option(help="Model folder.")] = FOLDER,
    architecture: Annotated[str, typer.Option(help="Name in torchvision.models.")] = "mobilenet_v2",
    classes: int = 11,
) -> None:
    """Writes a model folder for both backends, fp32, `resize: [224, 224]`."""
    import torch
    from safetensors.torch import save_file
    from torchvision.models import get_model

    from smallplates.cli import export

    torch.manual_seed(0)
    network = get_model(architecture, weights=None, num_classes=classes)
    fit_normalisation(network)
    with TemporaryDirectory() as folder:
        weights, labels = Path(folder, "weights.safetensors"), Path(folder, "labels.txt")
        save_file(network.state_dict(), weights)
        labels.write_text("".join(f"class {index}\n" for index in range(classes)))
        export.from_torchvision(
            weights=weights,
            labels=labels,
            out=out,
            name=architecture.replace("_", "-"),
            architecture=architecture,
            resize="224x224",
        )
    path = out / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **TUTORIAL_NAMES}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
