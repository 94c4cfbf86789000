"""Traces a network for PyTorch in Triton's Python backend: pixels in, logits out; for `build.py`."""

import warnings
from pathlib import Path

import torch
from torch import nn

from fastapi_pt.network import Normalise, read_network
from smallplates.models.folder import Model


def save(model: Model, folder: Path) -> None:
    """Writes `model.pt`, which any PyTorch 2 loads, on any device."""
    pipeline = model.description.pipeline
    network = nn.Sequential(Normalise(pipeline), read_network(model)).eval()
    example = torch.zeros((2, *pipeline.output_size, 3), dtype=torch.uint8)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing warns of fixed sizes and of its age
        torch.jit.trace(network, example, check_trace=False).save(str(folder / "model.pt"))
