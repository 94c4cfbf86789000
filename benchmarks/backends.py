"""Inference of one image on one thread, without HTTP: both backends against eager PyTorch.

`python -m benchmarks.backends [--model-dir DIR] [--rounds N]` alternates the candidates round by
round, so that a busy neighbour slows all of them, and prints the median time of each.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from tqdm import tqdm

from smallplates.engine.backend import Backend
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.image_classification import compute_logits

Infer = Callable[[NDArray[np.uint8]], object]
CALLS = 10  # in a row, per candidate and round


def eager(model: Model) -> Infer:
    """Returns inference as a simple handler does it: eager PyTorch on torchvision's tensors."""
    import torch  # here, because most commands of this program do not need it
    from torchvision.transforms import v2

    from fastapi_pt.network import read_network

    torch.set_num_threads(1)
    network = read_network(model)
    image = model.description.pipeline
    steps = v2.Compose(
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(image.mean, image.std)]
    )

    def infer(batch: NDArray[np.uint8]) -> object:
        with torch.no_grad():
            return network(torch.stack([steps(pixels) for pixels in batch])).numpy()

    return infer


def candidates(model: Model) -> dict[str, Infer]:
    """Returns an inference function by name, each loaded and warm."""
    from fastapi_onnx.backend import OnnxBackend
    from fastapi_pt.backend import TorchBackend

    settings = Settings(device="cpu", intra_op_threads=1)
    infer_by_name: dict[str, Infer] = {"PyTorch eager": eager(model)}
    backends: dict[str, Backend] = {"fastapi_pt": TorchBackend(), "fastapi_onnx": OnnxBackend()}
    for name, backend in backends.items():
        backend.load(model, settings)
        infer_by_name[name] = partial(compute_logits, backend)
    return infer_by_name


def main(
    model_dir: Annotated[Path, typer.Option(help="Model folder.")] = Path("models/food11"),
    rounds: Annotated[int, typer.Option(help="How often every candidate has its turn.")] = 30,
) -> None:
    """Prints the milliseconds for one image and the speed relative to eager PyTorch."""
    model = Model.read(model_dir)
    pixels = np.random.default_rng(0).integers(
        0, 256, (1, *model.description.pipeline.output_size, 3), np.uint8
    )
    times: dict[str, list[float]] = {}
    everyone = candidates(model)
    for number in tqdm(range(rounds + 1), mininterval=1):
        for name, infer in everyone.items():
            started = time.perf_counter()
            for _ in range(CALLS):
                infer(pixels)
            if number:  # the first round warms up
                times.setdefault(name, []).append((time.perf_counter() - started) / CALLS)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        ratio = medians["PyTorch eager"] / median
        typer.echo(f"{name:14} {median * 1000:6.2f} ms  {ratio:4.1f} times as fast as eager")


if __name__ == "__main__":
    typer.run(main)
