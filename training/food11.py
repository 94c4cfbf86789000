"""Default model: makes models/food11 from photos and ImageNet's weights, and its int8 files.

The network learns the dish as well as the class: it learns more from "ramen" than from "Soup". There are
many small photos and a few sharp ones, of four classes only.

`python -m training.food11 --data DIR --run RUN`; DIR holds data/food11-64/, data/food101-sharp/,
data/weights/ and photos/. An interrupted training goes on from RUN; a finished one is not repeated.
`--weights models/food11/1/model.safetensors`, with another RUN, trains that model further.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from fastapi_pt.network import build
from smallplates.cli import export
from smallplates.export import folder
from smallplates.models.description import ImagePipeline
from smallplates.tasks.image.decode import ImageDecoder
from training import augment, card, data, evaluate, loop, mobilenet
from training.calibration import fit_temperature
from training.data import Kind

LABELS = folder.read_labels(Path(__file__).with_name("labels.txt"))
CARD = Path(__file__).with_name("food11.card.md")
SMALL, SHARP = 64, 192
"""Sides of both kinds of photos."""

BODY_SIZE = 112
"""Pixels at which it sees a photo in service: the mean of four of 224."""

BODY_SIZES = (112, 128)
"""For the log."""

IMAGE = ImagePipeline(
    resize=BODY_SIZE,
    center_crop=BODY_SIZE,
    enlarge=(224, 224),
    mean=mobilenet.MEAN,
    std=mobilenet.STD,
)


@dataclass(frozen=True)
class Course:
    """A training: from ImageNet's weights, or from those of the training before it."""

    sizes: tuple[int, ...]
    """Pixels at which the network sees a photo, in each epoch."""

    peak: float
    decay_epochs: int
    fixed_epochs: int

    @property
    def plan(self) -> loop.Plan:
        """For the loop."""
        return loop.Plan(len(self.sizes), 64, self.peak, self.decay_epochs, self.fixed_epochs)


FROM_IMAGENET = Course((96,) * 3 + (112,) * 2 + (96,) * 4 + (112,) * 2, 8e-4, 6, 2)
AGAIN = Course((96,) * 10 + (112,) * 4, 6e-4, 10, 3)

FURTHER = (
    f"\n\nThe first training took {len(FROM_IMAGENET.sizes)} epochs. Each later one took "
    f"{len(AGAIN.sizes)}: it began with the weights of the\none before it and a high learning rate."
)
"""For the model card."""

STATISTICS_PHOTOS = 512
HELD_OUT = 10
"""Of so many sharp photos, one is for validation."""

CUTMIX = 0.25
LAST_STRENGTH = 0.5
"""In the last epochs, photos are changed half as much as before: closer to what is served."""

SMOOTHING = 0.1
DISHES = 0.5
"""Weight of the dishes beside the classes."""

EVERY_PHOTO = 5000


class Examples:
    """Photos of both kinds as one numbered list, and what the network is to say of each.

    It has an output for each class, and behind these one for each dish, which the export cuts off.

    A network that learns that sharp photos show one of only four classes is wrong in service. So of a
    sharp photo it learns only to tell these four apart, and they weigh the same.
    """

    def __init__(self, small: Kind, sharp: Kind, classes: int) -> None:
        names = sorted({*small.dishes, *sharp.dishes})
        numbers = {name: number for number, name in enumerate(names)}
        self.kinds, self.classes = (small, sharp), classes
        targets, allowed = [], []
        for kind in self.kinds:
            dishes = torch.tensor([numbers[name] for name in kind.dishes])
            parts = functional.one_hot(kind.classes, classes), functional.one_hot(dishes, len(names))
            targets.append(torch.cat(parts, 1).float())
            allowed.append((targets[-1].sum(0) > 0).expand_as(targets[-1]))
        counts = sharp.classes.bincount(minlength=classes)
        balanced = len(sharp) / (int((counts > 0).sum()) * counts[sharp.classes])
        self.targets = torch.cat(targets)
        """[N, classes + dishes], a one in each of both."""

        self.allowed = torch.cat(allowed)
        """bool [N, classes + dishes]: what photos of this kind show at all."""

        self.weights = torch.cat([torch.ones(len(small)), balanced])

    def __len__(self) -> int:
        return len(self.weights)

    def loss(self, model: nn.Module, chosen: Tensor, side: int, strength: float) -> Tensor:
        """Computes the loss of photos, changed at random with this strength, at `side` pixels."""
        batch, numbers, first = [], [], 0
        for kind in self.kinds:
            mine = chosen[(chosen >= first) & (chosen < first + len(kind))]
            if len(mine):
                batch.append(distorted(kind.photos[mine - first], side, strength))
                numbers.append(mine)
            first += len(kind)
        photos, rows = torch.cat(batch), torch.cat(numbers)
        targets, allowed = self.targets[rows], self.allowed[rows]
        if torch.rand(()) < CUTMIX * strength:
            photos, share, other = augment.cutmix(photos)
            targets = targets * share + targets[other] * (1 - share)
            allowed = allowed | allowed[other]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(mobilenet.normalise(photos)).float()
        total = torch.zeros(len(photos))
        for part, weight in ((slice(self.classes), 1.0), (slice(self.classes, None), DISHES)):
            possible = allowed[:, part]
            logits = outputs[:, part].masked_fill(~possible, -1e4)  # finite, to be multiplied by 0
            truth = targets[:, part].lerp(possible / possible.sum(1, keepdim=True), SMOOTHING)
            total -= weight * (truth * logits.log_softmax(1)).sum(1)
        return (self.weights[rows] * total).mean()


def distorted(photos: Tensor, side: int, strength: float) -> Tensor:
    """Changes uint8 photos [N, 3, H, W] to [N, 3, side, side] in [0, 1], each in its own way.

    `strength` 1 is the usual one, less changes crop, angle, colours and sharpness by less.
    Before that all are reduced by a random factor, so that a photo's sharpness says little of its kind.
    """
    have = photos.shape[-1]
    most = min(have, round(1.25 * side))
    least = min(most, (0.25 if have > SMALL else 0.7) * have)
    reduced = round(float(torch.empty(()).uniform_(math.log(least), math.log(most)).exp()))
    batch = photos.float() / 255
    if reduced < have and (have > most or torch.rand(()) < 0.5):
        batch = functional.interpolate(batch, size=reduced, mode="bilinear", antialias=True)
    batch = augment.random_resized_crop(batch, side, 1 - 0.7 * strength, 1.3, 0.2 * strength)
    return augment.camera(augment.colour_jitter(batch, 0.3 * strength), 0.8 * strength)


def train(data_dir: Path, run: Path, weights: Path | None) -> Path:
    """Trains from ImageNet's or these weights unless RUN is finished; returns the path of the result."""
    course = AGAIN if weights else FROM_IMAGENET
    plan = replace(course.plan, seed=course.plan.seed + len(list(card.epochs_of(run / "before"))))
    small = data.read(data_dir / "food11-64" / "train.zip", SMALL)
    val = data.read(data_dir / "food11-64" / "val.zip", SMALL)
    sharp = data.read(data_dir / "food101-sharp" / "train.zip", SHARP)
    held_out = torch.arange(len(sharp)) % HELD_OUT == 0
    kinds = {"val": val, "sharp": sharp.part(held_out)}
    examples = Examples(small, sharp.part(~held_out), len(LABELS))
    torch.manual_seed(plan.seed)
    some = small.photos[torch.randperm(len(small))[:STATISTICS_PHOTOS]]
    weights = weights or data_dir / "weights" / "mobilenet_v2_imagenet.npz"
    changed = distorted(some, course.sizes[0], 1.0)
    model = mobilenet.start(weights, examples.targets.shape[1], len(LABELS), changed)

    def loss(network: nn.Module, chosen: Tensor, epoch: float) -> Tensor:
        strength = 1.0 if epoch < plan.epochs - plan.fixed_epochs else LAST_STRENGTH
        return examples.loss(network, chosen, course.sizes[int(epoch)], strength)

    def figures(network: nn.Module) -> dict[str, float]:
        return {
            f"{name}_{side}": mobilenet.accuracy(network, kind, side, len(LABELS))
            for name, kind in kinds.items()
            for side in BODY_SIZES
        }

    return loop.fit(model, len(examples), plan, run, loss, figures)


def for_export(weights: Path) -> Path:
    """Writes the weights without the dishes' outputs, batch norm folded; returns their path."""
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
    network = build(mobilenet.ARCHITECTURE, len(LABELS), BODY_SIZE)
    network.body.load_state_dict(load_file(weights))
    network.eval()
    decoder = ImageDecoder(IMAGE, max_pixels=1_000_000)
    photos = list(data.iterate(zipped))
    logits = []
    for start in tqdm(range(0, len(photos), 64), desc="val", mininterval=2):
        pixels = np.stack([decoder.decode(photo) for photo, _ in photos[start : start + 64]])
        batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
        logits.append(network(mobilenet.normalise(batch)))
    return torch.cat(logits), torch.tensor([label for _, label in photos])


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
        Path | None, typer.Option(help="The model.safetensors of a model folder, to train it further.")
    ] = None,
) -> None:
    """Trains unless RUN is finished, then writes the whole model folder."""
    if weights:
        keep_log(weights.parents[1] / "training.jsonl", run / "before" / "log.jsonl")
    zips = data_dir / "data" / "food11-64"
    exported = for_export(train(data_dir / "data", run, weights))
    logits, labels = validation_logits(exported, zips / "val.zip")
    temperature = fit_temperature(logits, labels)
    typer.echo(f"top-1 {(logits.argmax(1) == labels).float().mean():.4f}, temperature {temperature:.3f}")
    export.from_torchvision(
        weights=exported,
        labels=Path(__file__).with_name("labels.txt"),
        out=out,
        name="food11",
        architecture=mobilenet.ARCHITECTURE,
        resize=str(IMAGE.resize),
        center_crop=IMAGE.center_crop,
        enlarge="224x224",
        body_size=BODY_SIZE,
        temperature=temperature,
    )
    evaluate.main(data_dir, [out], write=True)
    export.quantise(out, zips / "train.zip", zips / "val.zip", photos=EVERY_PHOTO)
    figures = {"body_size": BODY_SIZE, "resize": IMAGE.resize, "temperature": f"{temperature:.2f}"}
    figures["again"] = FURTHER if weights else ""
    card.write(out, CARD, run, figures)


if __name__ == "__main__":
    typer.run(main)
