"""Loop of all trainings: AdamW, a moving average of the weights, checkpoints, a log.

`fit` leaves in its folder `log.jsonl` (a line an epoch), `checkpoint.safetensors` (all that is needed to
go on where an interrupted training stopped), BEST, the moving average after the epoch whose figures have
the highest sum, and at the end `ema.safetensors`, the moving average.

The learning rate is warm-up, constant, linear to zero: until its fall begins, the number of epochs may
still be changed between two runs. Random numbers go on from the checkpoint's: what was interrupted sees
what an uninterrupted training would have seen.

With a time limit, for GPUs, epochs are equal parts of the time, of which a slow machine may skip some,
and there is nothing to go on from. Each leaves the moving average as `last.safetensors`.
"""

import json
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

BEST = "best.safetensors"
CHECKPOINT_SECONDS = 180

Loss = Callable[[nn.Module, Tensor, float], Tensor]
"""Takes the network, a batch's indices [N] and the epoch, which counts from 0 and has a fraction."""

Draw = Callable[[int], Tensor]
"""Takes an epoch's number; returns its batches' indices [steps, N]."""

Figures = Callable[[nn.Module], dict[str, float]]
"""Takes the moving average, in eval mode; the result goes into the log."""


@dataclass(frozen=True)
class Plan:
    """Length and pace of a training; times are in epochs."""

    epochs: int
    batch_size: int
    peak: float
    """Highest learning rate."""

    decay_epochs: float
    """The last ones, in which the learning rate falls to zero."""

    fixed_epochs: int = 0
    """The last ones, in which batch norm uses its statistics as in service, and keeps them."""

    warmup_epochs: float = 0.5
    weight_decay: float = 0.05
    ema_decay: float = 0.999
    seed: int = 11
    seconds: float | None = None
    """Time limit of the whole training."""

    def learning_rate(self, epoch: float) -> float:
        """Computes the learning rate: linear warm-up, constant, linear to zero."""
        return self.peak * min(
            (epoch + 0.01) / self.warmup_epochs, 1.0, (self.epochs - epoch) / self.decay_epochs
        )

    def places(self, epoch: int, first: int, steps: int, began: float) -> Iterator[float]:
        """Yields the epoch, with its fraction, before each of its steps from the `first` on.

        With a time limit these are as many as the time since `began` allows, at least one.
        """
        if self.seconds is None:
            yield from (epoch + step / steps for step in range(first, steps))
            return
        now = float(epoch)
        while now < epoch + 1:
            yield now
            now = max(now, self.epochs * (time.monotonic() - began) / self.seconds)

    def all_once(self, examples: int) -> Draw:
        """Returns a function that draws all examples once an epoch, in random order."""
        steps = examples // self.batch_size

        def draw(epoch: int) -> Tensor:
            order = torch.randperm(examples, generator=torch.Generator().manual_seed(self.seed + epoch))
            return order[: steps * self.batch_size].view(steps, self.batch_size)

        return draw


class Training:
    """Network, moving average and optimizer, and how many steps they have made."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.model = model
        self.ema = deepcopy(model).eval().requires_grad_(False)
        states = zip(self.ema.state_dict().values(), model.state_dict().values(), strict=True)
        self.averaged = [pair for pair in states if pair[0].is_floating_point()]
        self.pace = 1 - plan.ema_decay
        matrices = [p for p in model.parameters() if p.ndim > 1]
        vectors = [p for p in model.parameters() if p.ndim <= 1]  # no weight decay, as is usual
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": plan.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=plan.peak,
            betas=(0.9, 0.98),
            fused=True,
        )
        self.steps = 0

    def step(self, loss: Tensor, rate: float) -> Tensor:
        """Takes a step down the gradient of `loss`; returns the loss, without waiting for a GPU."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        averages, values = zip(*self.averaged, strict=True)
        torch._foreach_lerp_(averages, values, self.pace if self.steps else 1.0)
        self.steps += 1
        return loss.detach()

    def save(self, path: Path) -> None:
        """Writes everything as plain tensors, then renames it into place."""
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"ema.{k}": v for k, v in self.ema.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{key}.{name}"] = value
        tensors["random"] = torch.get_rng_state()
        contiguous = {k: v.contiguous().clone() for k, v in tensors.items()}
        partial = path.with_suffix(".partial")
        save_file(contiguous, partial, metadata={"steps": str(self.steps)})
        partial.rename(path)

    def load(self, path: Path) -> None:
        """Restores what `save` wrote, the state of the random numbers too."""
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 not a dict
            self.steps = int(file.metadata()["steps"])

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        self.model.load_state_dict(part("model."))
        self.ema.load_state_dict(part("ema."))
        for key in ("step", "exp_avg", "exp_avg_sq"):
            values = part(f"optimizer.{key}.")
            for name, parameter in self.model.named_parameters():
                value = values[name]
                if value.shape == parameter.shape:  # also in the parameter's memory format
                    value = torch.empty_like(parameter).copy_(value)
                self.optimizer.state[parameter][key] = value
        torch.set_rng_state(tensors["random"])


def fit(model: nn.Module, draw: Draw, plan: Plan, run: Path, loss: Loss, figures: Figures) -> Path:
    """Trains, from the checkpoint in `run` if there is one.

    Returns the path of the moving average's weights; a training that is finished is not repeated.
    """
    weights = run / "ema.safetensors"
    if weights.exists():
        return weights
    run.mkdir(parents=True, exist_ok=True)
    checkpoint = run / "checkpoint.safetensors"
    torch.manual_seed(plan.seed)
    training = Training(model, plan)
    if checkpoint.exists():
        training.load(checkpoint)
    norms = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    steps = len(draw(0))
    start = time.monotonic()
    for epoch in range(training.steps // steps if plan.seconds is None else 0, plan.epochs):
        began = saved = time.monotonic()
        if plan.seconds and epoch and began - start > plan.seconds * (epoch + 1) / plan.epochs:
            continue
        batches = draw(epoch)
        model.train()
        for norm in norms:
            norm.train(epoch < plan.epochs - plan.fixed_epochs)
        losses: list[Tensor] = []
        first = training.steps % steps if plan.seconds is None else 0
        places = plan.places(epoch, first, steps, start)
        progress = tqdm(places, f"epoch {epoch + 1}/{plan.epochs}", steps - first, mininterval=20)
        for now in progress:
            chosen = batches[(first + len(losses)) % steps]
            losses.append(training.step(loss(model, chosen, now), plan.learning_rate(now)))
            if plan.seconds is None and time.monotonic() > saved + CHECKPOINT_SECONDS:
                training.save(checkpoint)
                saved = time.monotonic()
        with torch.inference_mode():
            measured = figures(training.ema)
        line = {
            "epoch": epoch + 1,
            "lr": round(plan.learning_rate(now), 7),
            "loss": round(torch.stack(losses).mean().item(), 4),
            **{name: round(value, 4) for name, value in measured.items()},
            "steps": len(losses),
            "seconds": round(time.monotonic() - began, 1),
        }
        with (run / "log.jsonl").open("a+") as log:
            log.seek(0)
            earlier = [sum(json.loads(each)[name] for name in measured) for each in log]
            if sum(line[name] for name in measured) > max(earlier, default=0):
                write_weights(training.ema, run / BEST)
            log.write(json.dumps(line) + "\n")
        tqdm.write(json.dumps(line))
        if plan.seconds is None:
            training.save(checkpoint)
            continue
        write_weights(training.ema, run / "last.safetensors")
    write_weights(training.ema, weights)
    return weights


def write_weights(network: nn.Module, path: Path) -> None:
    """Writes a network's weights, then renames the file into place."""
    partial = path.with_suffix(".partial")
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, partial)
    partial.rename(path)
