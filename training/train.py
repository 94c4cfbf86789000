"""Training of a torchvision classifier on small photos, on the CPU or a GPU.

`python -m training.train --data DIR --run RUN` reads DIR/train.zip and DIR/val.zip and leaves, under
RUN, `log.jsonl` (one line an epoch), `checkpoint.safetensors` (all that is needed to go on after an
interruption: give the same command again) and `ema.safetensors` (the weights to export).

The schedule is warm-up, constant, linear to zero: until the last part begins, `--epochs` may still be
changed between two runs. Epochs before `--low-epochs` see photos of `--low-size` pixels, the others of
`--size`. Augmentation grows by 1/`--ramp-epochs` of its full strength an epoch, up to
`--augmentation`; `--variety` adds other cameras, angles and CutMix. Every epoch seeds its own random
numbers, so that an interrupted run sees what an uninterrupted one would have seen.
"""

import json
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.models import get_model
from tqdm import tqdm

from training import augment, data

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
SERVED_SIZE = 224


def normalise(photos: Tensor) -> Tensor:
    """Normalises [N, 3, H, W] in [0, 1] to zero mean and unit variance, channels last in memory."""
    mean = torch.tensor(MEAN, device=photos.device).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=photos.device).view(1, 3, 1, 1)
    return ((photos - mean) / std).contiguous(memory_format=torch.channels_last)


def learning_rate(epoch: float, peak: float, warmup: float, decay: float, epochs: float) -> float:
    """Computes the learning rate: linear warm-up, constant, linear to zero; all times in epochs."""
    return peak * min((epoch + 0.01) / warmup, 1.0, (epochs - epoch) / decay)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Groups the parameters: no weight decay on biases and batch norm, as is usual."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


@torch.inference_mode()
def evaluate(model: nn.Module, photos: Tensor, labels: Tensor, size: int) -> float:
    """Computes the top-1 accuracy on uint8 photos [N, 3, H, W], enlarged to `size`."""
    device = next(model.parameters()).device
    model.eval()
    hits = 0
    for part, truth in zip(photos.split(256), labels.split(256), strict=True):
        batch = functional.interpolate(part.to(device).float() / 255, size=size, mode="bilinear")
        with torch.autocast(device.type, dtype=torch.bfloat16):
            hits += int((model(normalise(batch)).argmax(1).cpu() == truth).sum())
    return hits / len(labels)


@torch.no_grad()
def renew_statistics(model: nn.Module, photos: Tensor, size: int) -> None:
    """Computes batch norm's means and variances anew, from unchanged uint8 photos [N, 3, H, W].

    In training a network keeps the statistics of photos that are cropped, turned and mixed; in service
    it sees whole photos.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean over all batches
    model.train()
    for part in photos.split(128):
        model(normalise(enlarged(part.float() / 255, size)))
    model.eval()


def enlarged(photos: Tensor, size: int) -> Tensor:
    """Resizes to 224 as the served pipeline does, then to `size` as the served network does."""
    large = functional.interpolate(photos, size=SERVED_SIZE, mode="bilinear")
    return functional.interpolate(large, size=size, mode="bilinear")


def distorted(
    photos: Tensor, targets: Tensor, side: int, growth: float, variety: float
) -> tuple[Tensor, Tensor]:
    """Augments uint8 photos [N, 3, H, W] to [N, 3, side, side] in [0, 1]; returns them with targets.

    `targets` [N, classes] are mixed like the photos; the module explains `growth` and `variety`.
    """
    batch = photos.float() / 255
    batch = augment.random_resized_crop(
        batch, side, 0.6 - 0.3 * growth, 1 + 0.3 * variety, 0.3 * variety
    )
    batch = augment.colour_jitter(batch, 0.2 + 0.2 * growth)
    if variety:
        batch = augment.camera(batch, variety)
    batch = augment.random_erasing(batch, 0.3 * growth)
    mix = torch.rand(())
    if mix < 0.5 * growth:
        return augment.mixup(batch, targets, 0.3)
    if mix > 1 - 0.35 * variety:
        return augment.cutmix(batch, targets)
    return batch, targets


def learn(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, targets: Tensor, smoothing: float
) -> float:
    """Takes one training step on photos in [0, 1]; returns the loss before the step."""
    with torch.autocast(batch.device.type, dtype=torch.bfloat16):
        loss = functional.cross_entropy(model(normalise(batch)), targets, label_smoothing=smoothing)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    return float(loss.item())


def save_checkpoint(
    path: Path, epoch: int, model: nn.Module, ema: AveragedModel, optimizer: torch.optim.Optimizer
) -> None:
    """Writes model, moving average and optimizer state as plain tensors, then renames into place."""
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    tensors |= {f"ema.{k}": v for k, v in ema.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = value
    partial = path.with_suffix(".partial")
    contiguous = {k: v.cpu().contiguous().clone() for k, v in tensors.items()}
    save_file(contiguous, partial, metadata={"epoch": str(epoch)})
    partial.rename(path)


def load_checkpoint(
    path: Path, model: nn.Module, ema: AveragedModel, optimizer: torch.optim.Optimizer
) -> int:
    """Restores what `save_checkpoint` wrote; returns the number of finished epochs."""
    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 not a dict
        epoch = int(file.metadata()["epoch"])

    def part(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    model.load_state_dict(part("model."))
    ema.load_state_dict(part("ema."))
    for key in ("step", "exp_avg", "exp_avg_sq"):
        values = part(f"optimizer.{key}.")
        for name, parameter in model.named_parameters():
            value = values[name].to(parameter.device)
            if value.shape == parameter.shape:  # also in the parameter's memory format
                value = torch.empty_like(parameter).copy_(value)
            optimizer.state[parameter][key] = value
    return epoch


def main(
    data_dir: Annotated[Path, typer.Option("--data", help="Folder with train.zip and val.zip.")],
    run: Annotated[Path, typer.Option(help="Folder for log and checkpoints.")],
    start_from: Annotated[Path | None, typer.Option(help="Weights of an earlier run.")] = None,
    architecture: Annotated[str, typer.Option(help="Name in torchvision.models.")] = "resnet18",
    classes: int = 11,
    epochs: int = 26,
    low_epochs: int = 0,
    decay_epochs: int = 15,
    ramp_epochs: int = 14,
    augmentation: Annotated[float, typer.Option(help="Where its growth ends; 1: full.")] = 0.65,
    variety: Annotated[float, typer.Option(help="Other cameras, angles, CutMix; 1: full.")] = 0.0,
    size: Annotated[int, typer.Option(help="Also the size of the validation.")] = 64,
    low_size: int = 64,
    batch_size: int = 64,
    peak: Annotated[float, typer.Option("--lr", help="Highest learning rate.")] = 1e-3,
    weight_decay: float = 0.05,
    smoothing: Annotated[float, typer.Option(help="Label smoothing.")] = 0.1,
    ema_decay: Annotated[
        float, typer.Option(help="Of the moving average to export; 0.9 where there are few steps.")
    ] = 0.999,
    seed: int = 11,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Trains, epoch by epoch; goes on from RUN/checkpoint.safetensors where there is one."""
    run.mkdir(parents=True, exist_ok=True)
    photos, labels = data.load(data_dir / "train.zip")
    if len(labels) < batch_size:
        raise typer.BadParameter(f"{len(labels)} photos are no batch of {batch_size}: see --batch-size")
    if int(labels.max()) >= classes:
        raise typer.BadParameter(
            f"train.zip has the class {labels.max()}: more than --classes {classes}, which counts from 0"
        )
    val_photos, val_labels = data.load(data_dir / "val.zip")
    torch.manual_seed(seed)
    model = get_model(architecture, weights=None, num_classes=classes)
    if start_from is not None:
        model.load_state_dict(load_file(start_from))
    model = model.to(device, memory_format=torch.channels_last)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(ema_decay), use_buffers=True)
    optimizer = torch.optim.AdamW(
        parameter_groups(model, weight_decay), lr=peak, betas=(0.9, 0.98), fused=True
    )
    checkpoint = run / "checkpoint.safetensors"
    start = load_checkpoint(checkpoint, model, ema, optimizer) if checkpoint.exists() else 0
    for epoch in range(start, epochs):
        began = time.monotonic()
        torch.manual_seed(seed * 1000 + epoch)
        growth = min(augmentation, epoch / ramp_epochs) if ramp_epochs else augmentation
        side = low_size if epoch < low_epochs else size
        order = torch.randperm(len(labels))
        steps = len(order) // batch_size
        model.train()
        total = 0.0
        for step in tqdm(range(steps), desc=f"epoch {epoch + 1}/{epochs}", mininterval=10):
            rate = learning_rate(epoch + step / steps, peak, 0.5, decay_epochs, epochs)
            for group in optimizer.param_groups:
                group["lr"] = rate
            chosen = order[step * batch_size : (step + 1) * batch_size]
            targets = functional.one_hot(labels[chosen], classes).float()
            batch, targets = distorted(photos[chosen], targets, side, growth, variety)
            total += learn(model, optimizer, batch.to(device), targets.to(device), smoothing)
            ema.update_parameters(model)
        line = {
            "epoch": epoch + 1,
            "size": side,
            "lr": round(rate, 7),
            "loss": round(total / steps, 4),
            "val_top1": round(evaluate(model, val_photos, val_labels, size), 4),
            "val_top1_ema": round(evaluate(ema, val_photos, val_labels, size), 4),
            "seconds": round(time.monotonic() - began),
        }
        with (run / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        tqdm.write(json.dumps(line))
        save_checkpoint(checkpoint, epoch + 1, model, ema, optimizer)
    weights = {k: v.cpu().contiguous() for k, v in ema.module.state_dict().items()}
    save_file(weights, run / "ema.safetensors", metadata={"architecture": architecture})


if __name__ == "__main__":
    typer.run(main)
