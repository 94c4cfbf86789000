"""Default model: makes models/food11 from the zips in three trainings, and its int8 files.

The first training sees gentle changes of the photos and learns fast. The second starts from the first's
weights, sees strong changes, and ends at a higher resolution. The third goes on from there.

`python -m training.food11 --data DIR --run RUN`; DIR holds data/food11-64/train.zip and val.zip, and
photos/. An interrupted training goes on from RUN; a finished one is not repeated.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from string import Template
from typing import Annotated, Any

import numpy as np
import torch
import typer
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from fastapi_pt.network import build
from serving.description import ImagePipeline, ModelDescription
from serving.model import Model
from serving.tasks.image.decode import ImageDecoder
from training import data, evaluate, export, folder, train
from training.int8_verdict import Verdict

LABELS = Path(__file__).with_name("labels.txt")
STAGES = ("first", "second", "third")
CARD = Path(__file__).with_name("MODEL_CARD.template.md")
STATISTICS_PHOTOS = 9000
EVERY_PHOTO = 5000
IMAGE = ImagePipeline(resize=64, center_crop=64, enlarge=(224, 224), mean=train.MEAN, std=train.STD)


@torch.no_grad()  # not inference_mode: the temperature is fitted on the result
def validation_logits(
    weights: Path, architecture: str, body_size: int, zipped: Path
) -> tuple[Tensor, Tensor]:
    """Computes logits [N, classes] and classes [N] of the validation photos, as they are served."""
    network = build(architecture, len(folder.read_labels(LABELS)), body_size)
    network.body.load_state_dict(load_file(weights))
    network.eval()
    decoder = ImageDecoder(IMAGE, max_pixels=1_000_000)
    photos = list(data.iterate(zipped))
    logits = []
    for start in tqdm(range(0, len(photos), 64), desc=f"val at {body_size} pixels", mininterval=2):
        pixels = np.stack([decoder.decode(photo) for photo, _ in photos[start : start + 64]])
        batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
        logits.append(network(train.normalise(batch)))
    return torch.cat(logits), torch.tensor([label for _, label in photos])


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Returns the divisor of the logits that gives the validation classes the highest likelihood."""
    log_temperature = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([log_temperature], lr=0.1, max_iter=100)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(logits / log_temperature.exp(), labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    return float(log_temperature.exp().item())


def read_log(path: Path) -> list[dict[str, Any]]:
    """Reads the epochs of a training's log; an epoch that was run twice counts once."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return list({line["epoch"]: line for line in lines}.values())


def write_card(out: Path, run: Path, temperature: float) -> None:
    """Writes MODEL_CARD.md from its template, model.json and the training logs."""
    model = Model.read(out).description
    epochs = {name: read_log(run / name / "log.jsonl") for name in STAGES}
    seconds = sum(epoch["seconds"] for log in epochs.values() for epoch in log)
    val, sharp = model.accuracy["val"], model.accuracy["sharp"]
    assert isinstance(val, dict) and isinstance(sharp, dict)  # noqa: S101, PT018 evaluate wrote them

    def percent(value: Any) -> str:  # a number of model.json
        return f"{100 * value:.1f} %"

    text = Template(CARD.read_text()).substitute(
        architecture=model.architecture,
        body_size=model.body_size,
        **{f"{name}_epochs": len(log) for name, log in epochs.items()},
        hours=f"{seconds / 3600:.1f}",
        temperature=f"{temperature:.2f}",
        val_photos=val["photos"],
        val_top1=percent(val["top1"]),
        val_top3=percent(val["top3"]),
        val_ece=percent(val["expected_calibration_error"]),
        sharp_photos=sharp["photos"],
        sharp_top1=percent(sharp["top1"]),
        sharp_top3=percent(sharp["top3"]),
        sharp_ece=percent(sharp["expected_calibration_error"]),
        int8_rows="\n".join(int8_rows(model)),
    )
    (out / "MODEL_CARD.md").write_text(text)


def int8_rows(model: ModelDescription) -> Iterator[str]:
    """Yields a row of the card's table for each int8 file."""
    for name, kept in model.int8.items():
        verdict = Verdict.of(kept)
        accuracy = " | ".join(f"{100 * verdict.accuracy[key]:.1f} %" for key in ("fp32", "int8"))
        times = " | ".join(f"{verdict.batch_ms[key][1]:.1f} ms" for key in ("fp32", "int8"))
        yield f"| {name} | {verdict.method} | {accuracy} | {100 * verdict.agreement:.1f} % | {times} |"


def renewed(weights: Path, architecture: str, zipped: Path, body_size: int) -> Path:
    """Writes weights with batch norm statistics of unchanged photos; returns their path."""
    network = build(architecture, len(folder.read_labels(LABELS)), None).body
    network.load_state_dict(load_file(weights))
    photos, labels = data.load(zipped)
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))[:STATISTICS_PHOTOS]
    train.renew_statistics(network, photos[chosen], body_size)
    path = weights.with_name("renewed.safetensors")
    state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    save_file(state, path, metadata={"architecture": architecture})
    return path


def weights_of(run: Path) -> Path:
    """Returns the path of a training's weights, for the export or the next training."""
    return run / "ema.safetensors"


def main(
    data_dir: Annotated[Path, typer.Option("--data", help="Holds data/food11-64/ and photos/.")],
    run: Annotated[Path, typer.Option(help="Folder for the training's log and checkpoints.")],
    out: Annotated[Path, typer.Option(help="The model's folder.")] = Path("models/food11"),
    body_size: Annotated[int, typer.Option(help="Pixels at which the network sees a photo.")] = 80,
) -> None:
    """Trains unless RUN is finished, then writes the whole model folder."""
    zips = data_dir / "data" / "food11-64"
    first, second, third = (run / name for name in STAGES)
    full = partial(
        train.main, zips, ramp_epochs=0, augmentation=0.8, variety=1.0, size=body_size, peak=7e-4
    )
    if not weights_of(first).exists():
        train.main(zips, first)
    if not weights_of(second).exists():
        start = weights_of(first)
        full(second, start_from=start, epochs=24, low_epochs=8, decay_epochs=12)
    weights = weights_of(third)
    if not weights.exists():
        full(third, start_from=weights_of(second), epochs=21, decay_epochs=21, seed=12)
    with safe_open(weights, framework="pt") as file:
        architecture = file.metadata()["architecture"]
    weights = renewed(weights, architecture, zips / "train.zip", body_size)
    logits, labels = validation_logits(weights, architecture, body_size, zips / "val.zip")
    temperature = fit_temperature(logits, labels)
    typer.echo(f"top-1 {(logits.argmax(1) == labels).float().mean():.4f}, temperature {temperature:.3f}")
    export.from_torchvision(
        weights=weights,
        labels=LABELS,
        out=out,
        name="food11",
        architecture=architecture,
        resize=str(IMAGE.resize),
        center_crop=IMAGE.center_crop,
        enlarge="224x224",
        body_size=body_size,
        temperature=temperature,
    )
    evaluate.main(data_dir, out, write=True)
    export.quantise(out, zips / "train.zip", zips / "val.zip", photos=EVERY_PHOTO)
    write_card(out, run, temperature)


if __name__ == "__main__":
    typer.run(main)
