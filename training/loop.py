"""Loop of both trainings: AdamW, a moving average of the weights, checkpoints, a log.

`fit` leaves in its folder `log.jsonl` (a line an epoch), `checkpoint.safetensors` (all that is needed to
go on where an interrupted training stopped) and, at the end, `ema.safetensors`, the weights to export.

The learning rate is warm-up, constant, linear to zero: until its fall begins, the number of epochs may
still be changed between two runs. Random numbers go on from the checkpoint's: what was interrupted sees
what an uninterrupted training would have seen.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

CHECKPOINT_SECONDS = 180

Loss = Callable[[nn.Module, Tensor, float], Tensor]
"""Takes the network, a batch's indices [N] and the epoch, which counts from 0 and has a fraction."""

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

    def learning_rate(self, epoch: float) -> float:
        """Computes the learning rate: linear warm-up, constant, linear to zero."""
        return self.peak * min(
            (epoch + 0.01) / self.warmup_epochs, 1.0, (self.epochs - epoch) / self.decay_epochs
        )


class Training:
    """Network, moving average and optimizer, and how many steps they have made."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.model = model
        self.ema = AveragedModel(
            model, multi_avg_fn=get_ema_multi_avg_fn(plan.ema_decay), use_buffers=True
        )
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

    def step(self, loss: Tensor, rate: float) -> float:
        """Takes a step down the gradient of `loss`; returns the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        self.ema.update_parameters(self.model)
        self.steps += 1
        return float(loss.item())

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


def fit(model: nn.Module, examples: int, plan: Plan, run: Path, loss: Loss, figures: Figures) -> Path:
    """Trains on `examples` examples, from the checkpoint in `run` if there is one.

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
    steps = examples // plan.batch_size
    for epoch in range(training.steps // steps, plan.epochs):
        began = saved = time.monotonic()
        order = torch.randperm(examples, generator=torch.Generator().manual_seed(plan.seed + epoch))
        model.train()
        for norm in norms:
            norm.train(epoch < plan.epochs - plan.fixed_epochs)
        losses = []
        first = training.steps % steps
        progress = tqdm(range(first, steps), f"epoch {epoch + 1}/{plan.epochs}", mininterval=20)
        for step in progress:
            now = epoch + step / steps
            chosen = order[step * plan.batch_size : (step + 1) * plan.batch_size]
            losses.append(training.step(loss(model, chosen, now), plan.learning_rate(now)))
            if time.monotonic() > saved + CHECKPOINT_SECONDS:
                training.save(checkpoint)
                saved = time.monotonic()
        training.ema.eval()
        with torch.inference_mode():
            measured = figures(training.ema.module)
        line = {
            "epoch": epoch + 1,
            "lr": round(plan.learning_rate(now), 7),
            "loss": round(sum(losses) / len(losses), 4),
            **{name: round(value, 4) for name, value in measured.items()},
            "steps": len(losses),
            "seconds": round(time.monotonic() - began),
        }
        with (run / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        tqdm.write(json.dumps(line))
        training.save(checkpoint)
    save_file({k: v.contiguous() for k, v in training.ema.module.state_dict().items()}, weights)
    return weights
