"""Default model: makes models/food11 from photos and ImageNet's weights, and its int8 files.

`python -m training.food11 --data DIR --run RUN`; DIR holds data/food11-64/, data/food-sharp/,
data/food101-sharp/, data/weights/ and photos/. An interrupted training goes on from RUN; a finished one,
such as one of `training.photos` on a GPU, is not repeated.
`--weights models/food11/1/model.safetensors`, with another RUN, trains that model further.
"""

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from fastapi_pt.network import build
from smallplates.cli import export
from smallplates.export import folder
from smallplates.models.description import ImagePipeline
from smallplates.tasks.image.decode import ImageDecoder
from training import card, data, evaluate, mobilenet, photos
from training.calibration import fit_temperature

LABELS = folder.read_labels(Path(__file__).with_name("labels.txt"))
CARD = Path(__file__).with_name("food11.card.md")

IMAGE = ImagePipeline(
    resize=(photos.BODY_SIZE, photos.BODY_SIZE),
    enlarge=(photos.INPUT_SIZE, photos.INPUT_SIZE),
    mean=mobilenet.MEAN,
    std=mobilenet.STD,
)

EVERY_PHOTO = 5000


def for_export(weights: Path) -> Path:
    """Writes the weights with the classes' outputs only, batch norm folded; returns their path."""
    state = load_file(weights)
    for name in ("classifier.1.weight", "classifier.1.bias"):
        state[name] = state[name][: len(LABELS)]
    network = build(mobilenet.ARCHITECTURE, len(LABELS), None).body
    network.load_state_dict(state)
    mobilenet.fold(network)
    path = weights.with_name("export.safetensors")
    save_file(network.state_dict(), path)
    return path


@torch.no_grad()  # not inference_mode: the temperature is fitted on the result
def validation_logits(weights: Path, zipped: Path) -> tuple[Tensor, Tensor]:
    """Computes logits [N, classes] and classes [N] of the validation photos, as they are served."""
    network = build(mobilenet.ARCHITECTURE, len(LABELS), photos.BODY_SIZE)
    network.body.load_state_dict(load_file(weights))
    network.eval()
    decoder = ImageDecoder(IMAGE, max_pixels=1_000_000)
    examples = list(data.iterate(zipped))
    logits = []
    for start in tqdm(range(0, len(examples), 64), desc=zipped.name, mininterval=2):
        pixels = np.stack([decoder.decode(photo) for photo, _ in examples[start : start + 64]])
        batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
        logits.append(network(mobilenet.normalise(batch)))
    return torch.cat(logits), torch.tensor([label for _, label in examples])


def keep_log(log: Path, kept: Path) -> None:
    """Copies the log of all trainings before this one, and numbers the last of them."""
    if kept.exists():
        return
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    number = len({line["network"] for line in lines if "network" in line}) + 1
    kept.parent.mkdir(parents=True)
    kept.write_text(
        "".join(json.dumps({"network": f"training {number}", **line}) + "\n" for line in lines)
    )


def main(
    data_dir: Annotated[Path, typer.Option("--data", help="Holds data/ and photos/.")],
    run: Annotated[Path, typer.Option(help="Folder for the training's log and checkpoints.")],
    out: Annotated[Path, typer.Option(help="Model folder.")] = Path("models/food11"),
    weights: Annotated[
        Path | None, typer.Option(help="Weights of a model folder, or of another RUN, to begin with.")
    ] = None,
    earlier: Annotated[Path | None, typer.Option(help="Weights whose answers are learnt, too.")] = None,
) -> None:
    """Trains unless RUN is finished, then writes the whole model folder."""
    if weights and (log := weights.parents[1] / "training.jsonl").exists():
        keep_log(log, run / "before" / "log.jsonl")
    zips = data_dir / "data" / "food11-64"
    exported = for_export(photos.train(data_dir / "data", run, weights, earlier))
    small = validation_logits(exported, zips / "val.zip")
    sharp = validation_logits(exported, data_dir / "data" / "food-sharp" / "valid.zip")
    evenly = len(small[1]) // len(sharp[1]) or 1  # as many photos of one kind as of the other
    pairs = zip((part[::evenly] for part in small), sharp, strict=True)
    temperature = fit_temperature(*map(torch.cat, pairs))
    typer.echo(f"temperature {temperature:.3f}")
    export.from_torchvision(
        weights=exported,
        labels=Path(__file__).with_name("labels.txt"),
        out=out,
        name="food11",
        architecture=mobilenet.ARCHITECTURE,
        resize=f"{photos.BODY_SIZE}x{photos.BODY_SIZE}",
        enlarge=f"{photos.INPUT_SIZE}x{photos.INPUT_SIZE}",
        body_size=photos.BODY_SIZE,
        temperature=temperature,
    )
    evaluate.main(data_dir, [out], write=True)
    sharp_photos = data_dir / "data" / "food-sharp" / "train.zip"
    export.quantise(out, sharp_photos, zips / "val.zip", photos=EVERY_PHOTO)
    figures = {
        "body_size": photos.BODY_SIZE,
        "temperature": f"{temperature:.2f}",
    }
    card.write(out, CARD, run, figures)


if __name__ == "__main__":
    typer.run(main)
