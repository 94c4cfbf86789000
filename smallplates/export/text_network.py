"""ONNX file of a network for texts that transformers reads, with its pooling; for `cli/export.py`."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime as ort
import torch

from fastapi_pt.huggingface import ByName, library, token_network
from fastapi_pt.tokens import examples
from smallplates.errors import ConfigurationError, library_errors
from smallplates.export.torch_export import program_of
from smallplates.models.comparison import relative
from smallplates.models.folder import Model

AXES = ("batch_size", "sequence_length")  # of any number of texts and tokens
TOLERANCE = 1e-3
"""Largest accepted difference of a number from PyTorch's, as a share of the largest number."""


def write(model: Model, path: Path) -> None:
    """Writes the graph if it computes what PyTorch does; large weights get a file beside it.

    Raises ConfigurationError and OSError; then there is no file.
    """
    network = token_network(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".export-", dir=path.parent) as folder:
        graph = Path(folder, path.name)
        with library_errors("PyTorch cannot export the network"):
            export_in_some_form(network, model, graph)
            gap = difference(network, model, graph)
        if gap > TOLERANCE:
            raise ConfigurationError(f"the exported graph differs from PyTorch by {gap:.2g} (relative)")
        for file in graph.parent.iterdir():
            shutil.move(file, path.with_name(file.name))


def export_in_some_form(network: ByName, model: Model, path: Path) -> None:
    """Writes an ONNX file; with transformers' own attention if PyTorch's cannot be exported, as of T5.

    Raises the library's errors.
    """
    try:
        export(network, model, path)
    except Exception as error:  # of PyTorch's exporter
        for module in network.modules():
            if isinstance(module, library().PreTrainedModel):
                module.set_attn_implementation("eager")
        try:
            export(network, model, path)
        except Exception:
            raise error from None


def export(network: ByName, model: Model, path: Path) -> None:
    """Writes an ONNX file for any number of texts and tokens. Raises the library's errors."""
    inputs = dict(zip(network.inputs, examples(model, network)[-1], strict=True))
    program_of(network, inputs, AXES, network.outputs, is_variadic=True).save(path)


def difference(network: ByName, model: Model, path: Path) -> float:
    """Returns the largest difference from PyTorch for texts of several lengths, see TOLERANCE."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    gaps = []
    for inputs in examples(model, network):
        feed = {name: tensor.numpy() for name, tensor in zip(network.inputs, inputs, strict=True)}
        with torch.inference_mode():
            pairs = zip(network(*inputs), session.run(list(network.outputs), feed), strict=True)
        gaps += [relative(one.numpy(), other).worst for one, other in pairs]
    return max(gaps)
