"""ONNX file of a network for texts that transformers reads, with its pooling; for `cli/export.py`."""

import shutil
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime as ort
import torch

from fastapi_pt.huggingface import ByName, token_network
from fastapi_pt.tokens import examples
from smallplates.errors import ConfigurationError
from smallplates.export.int8_onnx import in_one_line
from smallplates.models.comparison import relative
from smallplates.models.folder import Model

AXES = ("batch_size", "sequence_length")
TOLERANCE = 1e-3
"""Largest accepted difference of a number from PyTorch's, as a share of the largest number."""


def write(model: Model, path: Path) -> None:
    """Writes the graph if it computes what PyTorch does; large weights get a file beside it.

    Raises ConfigurationError and OSError; then there is no file.
    """
    network = token_network(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".export-", dir=path.parent) as folder:
        made = Path(folder, path.name)
        try:
            export(network, model, made)
            gap = difference(network, model, made)
        except Exception as error:  # of PyTorch's exporter and ONNX Runtime
            raise ConfigurationError(
                f"PyTorch cannot export the network: {in_one_line(error)}"
            ) from error
        if gap > TOLERANCE:
            raise ConfigurationError(f"the exported graph differs from PyTorch by {gap:.2g} (relative)")
        for file in made.parent.iterdir():
            shutil.move(file, path.with_name(file.name))


def export(network: ByName, model: Model, path: Path) -> None:
    """Writes an ONNX file for any number of texts and tokens. Raises the library's errors."""
    inputs = examples(model, network)[-1]
    sizes = {number: torch.export.Dim(name) for number, name in enumerate(AXES)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that inputs share their axes
        program = torch.onnx.export(
            network,
            inputs,
            dynamo=True,
            input_names=list(network.inputs),
            output_names=list(network.outputs),
            dynamic_shapes=((sizes,) * len(inputs),),
            opset_version=18,
            verbose=False,
        )
    assert program is not None  # noqa: S101 dynamo=True returns one
    for node in program.model_proto.graph.node:
        del node.metadata_props[:]
    program.save(path)


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
