"""Training of food11 on small and sharp photos, on a GPU if there is one. `food11.py` exports it.

The network learns more than the class: the dish, where it is known, because it learns more from "ramen"
than from "Soup"; of sharp photos also what ImageNet's network answers, so that it keeps features that
tell more than the source of a photo; and, if it goes on from an earlier network, that one's answers.

`python -m training.photos --data DIR --run RUN --seconds 270` trains in so much time, and
imports nothing that only the export needs.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import mobilenet_v2

from training import augment, data, loop, mobilenet
from training.data import Kind

CLASSES = 11
SMALL, SHARP = 64, 160
"""Sides of both kinds of photos."""

BODY_SIZE, INPUT_SIZE = 144, 224
"""Pixels at which the network sees a photo in service, and those of its input, which it reduces."""


@dataclass(frozen=True)
class Course:
    """A training: its photos, their size and its pace."""

    sizes: tuple[int, ...]
    """Pixels at which the network sees a photo, in each epoch."""

    sharp: int
    """Sharp photos of a batch; the others are small."""

    together: int
    """So many photos are reduced by the same factor."""

    last_epochs: int
    """In the last epochs, photos are changed half as much as before: closer to what is served."""

    plan: loop.Plan
    steps: int | None = None
    """Steps of an epoch. None: as many as show each small photo once."""


FIRST = Course(
    (128,) * 14 + (144,) * 6,
    sharp=168,
    together=64,
    last_epochs=3,
    plan=loop.Plan(
        20, 384, peak=1.2e-3, decay_epochs=12, fixed_epochs=2, warmup_epochs=0.5, ema_decay=0.998
    ),
)
"""From ImageNet's weights or an earlier network's."""

FINISH = Course(
    (144,) * 8,
    sharp=42,
    together=27,
    last_epochs=3,
    plan=loop.Plan(
        8,
        96,
        peak=3e-4,
        decay_epochs=8,
        fixed_epochs=2,
        warmup_epochs=0.1,
        ema_decay=0.995,
        seed=23,
    ),
    steps=125,
)
"""From a checkpoint of the first training, which a limit on a GPU's time cut off; for a CPU."""

SOURCE_POWER = -0.5
"""A sharp photo's chance is the number of its source's photos in its class, to this power."""

CUTMIX, MIXUP = 0.3, 0.2
LAST_STRENGTH = 0.5
SMOOTHING = 0.1
EARLIER_SMALL, EARLIER_SHARP = 0.5, 0.15
"""Share of the earlier network's answers in the targets: it knows small photos better."""

DISHES, OBJECTS = 0.5, 0.5
"""Weights of the dishes and of ImageNet's objects beside the classes."""

SHARES = (0.49, 0.21, 0.3)
"""Weights of an average of three networks: the training's end, its checkpoint, and the earlier network.

Averages are right more often for photos from other sources (Wortsman et al., 2022). The weights were
chosen with the validation photos: 57.9 % of the sharp ones and 73.9 % of every second small one are
right. At the training's end it was 55.8 and 72.8 %.
"""

STATISTICS_PHOTOS = 512


class Examples:
    """Photos of both kinds, and what the network is to say of each.

    It has an output for each class, behind these one for each dish, then one for each of ImageNet's
    objects. The export cuts off all but the classes.
    """

    def __init__(self, small: Kind, sharp: Kind, objects: Tensor, course: Course) -> None:
        """`objects` [sharp photos, objects] are the probabilities of what the sharp photos show."""
        self.kinds, self.course, device = (small, sharp), course, objects.device
        dishes = sorted({name for kind in self.kinds for name in kind.names if "-" in name})
        numbers = {name: number for number, name in enumerate(dishes)}
        self.ends = CLASSES, CLASSES + len(dishes), CLASSES + len(dishes) + objects.shape[1]
        self.targets = []
        """[N, outputs] of each kind; where nothing is known of dish or object, there are only zeros."""

        for kind in self.kinds:
            targets = torch.zeros(len(kind), self.ends[2], device=device)
            targets[:, :CLASSES] = smooth(functional.one_hot(kind.classes, CLASSES))
            known = torch.tensor([numbers.get(name, -1) for name in kind.names], device=device)
            one_hot = functional.one_hot(known + 1, len(dishes) + 1)[:, 1:]
            targets[:, CLASSES : self.ends[1]] = smooth(one_hot) * (known >= 0)[:, None]
            self.targets.append(targets)
        self.targets[1][:, self.ends[1] :] = objects
        sources = list(zip(sharp.classes.tolist(), sharp.names, strict=True))
        counts = Counter(sources)
        self.chances = torch.tensor([counts[source] ** SOURCE_POWER for source in sources])
        """[sharp photos], on the CPU; each class has the same chance in all."""

        of_class = torch.zeros(CLASSES).index_add_(0, sharp.classes.cpu(), self.chances)
        self.chances /= of_class[sharp.classes.cpu()]

    def learn_from(self, earlier: nn.Module) -> None:
        """Mixes an earlier network's answers for the photos, reduced to small ones, into the targets."""
        for kind, targets, share in zip(
            self.kinds, self.targets, (EARLIER_SMALL, EARLIER_SHARP), strict=True
        ):
            logits = mobilenet.logits(earlier, kind.photos, (SMALL, FIRST.sizes[0]))
            targets[:, :CLASSES].lerp_(logits[:, :CLASSES].softmax(1), share)

    def draw(self, seed: int) -> Tensor:
        """Draws an epoch, in which a small photo comes once at most: [steps, N], small ones first."""
        generator, sharp = torch.Generator().manual_seed(seed), self.course.sharp
        part = self.course.plan.batch_size - sharp
        steps = len(self.kinds[0]) // part
        small = torch.randperm(len(self.kinds[0]), generator=generator)[: steps * part].view(steps, part)
        drawn = torch.multinomial(self.chances, steps * sharp, True, generator=generator)
        batches = torch.cat([small, drawn.view(steps, sharp)], 1)[: self.course.steps]
        return batches.to(self.targets[0].device)

    def changed(self, chosen: Tensor, side: int, strength: float) -> Tensor:
        """Returns the photos of a batch [N], changed at random: [N, 3, side, side] in [0, 1]."""
        batch = torch.cat(
            [
                cropped(kind.photos[part], side, strength)
                for kind, numbers in zip(self.kinds, self.split(chosen), strict=True)
                for part in numbers.split(self.course.together)
            ]
        )
        return augment.camera(augment.colour_jitter(batch, 0.3 * strength), 0.8 * strength)

    def loss(self, model: nn.Module, chosen: Tensor, side: int, strength: float) -> Tensor:
        """Computes the loss of a batch [N], changed with this strength, at `side` pixels."""
        photos = self.changed(chosen, side, strength)
        rows = zip(self.targets, self.split(chosen), strict=True)
        targets = torch.cat([targets[numbers] for targets, numbers in rows])
        dice = float(torch.rand(())) / strength
        if dice < CUTMIX + MIXUP:
            photos, share, other = (augment.cutmix if dice < CUTMIX else augment.mixup)(photos)
            targets = targets[other].lerp(targets, share)
        with torch.autocast(photos.device.type, dtype=torch.bfloat16):
            outputs = model(mobilenet.normalise(photos)).float()
        total = torch.zeros((), device=photos.device)
        parts = zip((0, *self.ends), self.ends, (1.0, DISHES, OBJECTS), strict=False)
        for first, end, weight in parts:
            answers = outputs[:, first:end].log_softmax(1)
            total = total - weight * (targets[:, first:end] * answers).sum(1).mean()
        return total

    def split(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the numbers of the small and of the sharp photos of a batch."""
        small = len(chosen) - self.course.sharp
        return chosen[:small], chosen[small:]


def smooth(one_hot: Tensor) -> Tensor:
    """Returns targets [N, C] with some doubt about the labels."""
    return one_hot * (1 - SMOOTHING) + SMOOTHING / one_hot.shape[1]


def cropped(photos: Tensor, side: int, strength: float) -> Tensor:
    """Crops, turns and mirrors uint8 photos [N, 3, H, W]: float [N, 3, side, side] in [0, 1].

    Before that all are reduced by a random factor, so that a photo's sharpness says little of its kind.
    """
    have = photos.shape[-1]
    most = min(have, round(1.25 * side))
    least = min(most, round((0.25 if have > SMALL else 0.7) * have))
    reduced = round(math.exp(float(torch.empty(()).uniform_(math.log(least), math.log(most)))))
    batch = photos.float() / 255
    if reduced < have and (have > most or torch.rand(()) < 0.7):
        batch = functional.interpolate(batch, size=reduced, mode="bilinear", antialias=True)
    return augment.random_resized_crop(batch, side, 1 - 0.7 * strength, 1.3, 0.2 * strength)


def train(
    data_dir: Path,
    run: Path,
    weights: Path | None,
    earlier: Path | None = None,
    seconds: float | None = None,
    seed: int = 0,
) -> Path:
    """Trains from ImageNet's weights, an earlier network's or a checkpoint's, unless RUN is finished.

    `earlier` has the weights of the network whose answers are learnt; by default the one that it begins
    with, unless that is a checkpoint. Returns the path of the result, with more outputs than classes.
    """
    for name in ("averaged.safetensors", "ema.safetensors"):
        if (run / name).exists():
            return run / name
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checkpoint = load_file(weights) if weights else {}
    goes_on = (
        any(name.endswith("running_mean") for name in checkpoint)
        and len(checkpoint["classifier.1.bias"]) > CLASSES
    )
    course = FINISH if goes_on else FIRST
    plan = replace(course.plan, seed=course.plan.seed + seed, seconds=seconds)
    torch.manual_seed(plan.seed)
    sharp_zips = (data_dir / name / "train.zip" for name in ("food-sharp", "food101-sharp"))
    small = data.read(SMALL, data_dir / "food11-64" / "train.zip").to(device)
    sharp = data.read(SHARP, *sharp_zips).to(device)
    kinds = {
        "val": data.read(SMALL, data_dir / "food11-64" / "val.zip").to(device),
        "valid": data.read(SHARP, data_dir / "food-sharp" / "valid.zip").to(device),
    }
    some = sharp.photos[torch.randperm(len(sharp))[:STATISTICS_PHOTOS].to(device)].float().cpu() / 255
    imagenet = data_dir / "weights" / "mobilenet_v2_imagenet.npz"
    teacher = mobilenet.start(imagenet, 1000, 1000, some).to(device)
    objects = mobilenet.logits(teacher, sharp.photos, (192,)).softmax(1)
    examples = Examples(small, sharp, objects, course)
    if earlier := earlier or (None if goes_on else weights):
        examples.learn_from(mobilenet.start(earlier, CLASSES, CLASSES, some).to(device))
    if goes_on:
        model: nn.Module = mobilenet_v2(num_classes=examples.ends[2])
        model.load_state_dict(checkpoint)
        model = mobilenet.channels_last(model)
    else:
        batches = examples.draw(0)[:2]
        changed = torch.cat([examples.changed(chosen, course.sizes[0], 1.0) for chosen in batches])
        model = mobilenet.start(weights or imagenet, examples.ends[2], CLASSES, changed.cpu())
    model = model.to(device)

    def loss(network: nn.Module, chosen: Tensor, epoch: float) -> Tensor:
        torch.backends.cudnn.benchmark = True  # it takes seconds for each new shape
        strength = 1.0 if epoch < plan.epochs - course.last_epochs else LAST_STRENGTH
        return examples.loss(network, chosen, course.sizes[int(epoch)], strength)

    def figures(network: nn.Module) -> dict[str, float]:
        torch.backends.cudnn.benchmark = False
        return {
            f"{name}_{side}": mobilenet.accuracy(network, kind, (side, INPUT_SIZE, side), CLASSES)
            for name, kind in kinds.items()
            for side in (FIRST.sizes[0], BODY_SIZE)
        }

    ema = loop.fit(model, lambda epoch: examples.draw(plan.seed + epoch), plan, run, loss, figures)
    if not (goes_on and earlier):
        return ema
    batches = torch.cat([examples.changed(chosen, BODY_SIZE, 1.0) for chosen in examples.draw(0)[:6]])
    first = mobilenet.start(earlier, examples.ends[2], CLASSES, batches.cpu()).state_dict()
    return average([load_file(ema), checkpoint, first], run / "averaged.safetensors")


def average(states: list[dict[str, Tensor]], path: Path) -> Path:
    """Writes the average of weights by SHARES; returns its path.

    The last one's rows of other outputs than the classes say nothing: the first one's take their place.
    """
    end, _, first = states
    for name in ("classifier.1.weight", "classifier.1.bias"):
        first[name] = torch.cat([first[name][:CLASSES], end[name][CLASSES:]])
    averaged = dict(end)
    for name, value in end.items():
        if value.is_floating_point():
            weighted = (share * state[name] for share, state in zip(SHARES, states, strict=True))
            averaged[name] = sum(weighted, torch.zeros_like(value)).contiguous()
    save_file(averaged, path)
    return path


def main(
    data_dir: Annotated[Path, typer.Option("--data", help="Holds food11-64/, food-sharp/ and so on.")],
    run: Annotated[Path, typer.Option(help="Folder for the log and the weights.")],
    weights: Annotated[
        Path | None, typer.Option(help="Weights of a model folder, or of another RUN, to begin with.")
    ] = None,
    earlier: Annotated[Path | None, typer.Option(help="Weights whose answers are learnt, too.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Time of the training, for a GPU.")] = None,
    seed: Annotated[int, typer.Option(help="Another number, another training.")] = 0,
) -> None:
    """Trains, and writes nothing but RUN."""
    train(data_dir, run, weights, earlier, seconds, seed)


if __name__ == "__main__":
    typer.run(main)
