"""ONNX graphs whose weights lie in other files beside them, as PyTorch's exporter writes them."""

from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data

from smallplates.models.folder import Model


def read(path: Path) -> ModelProto:
    """Reads a graph with all its weights.

    In the Hugging Face Hub's cache, files are links to others, which `onnx.load` refuses. Raises what
    `onnx.load` raises, OSError and ValueError.
    """
    graph = onnx.load(path, load_external_data=False)
    for tensor, place in outside(graph):
        with path.with_name(place.location).open("rb") as file:
            file.seek(place.offset or 0)
            tensor.raw_data = file.read(place.length)
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    load_external_data_for_model(graph, str(path.parent))  # the others, or an error
    return graph


def data_files(path: Path) -> set[Path]:
    """Returns the files below the graph's folder that hold its weights; mostly there are none."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    places = {Path(ExternalDataInfo(each).location) for each in tensors if uses_external_data(each)}
    return {path.parent / place for place in places if place.name and not {"..", "/"} & {*place.parts}}


def check_data(model: Model, path: Path) -> None:
    """Checks the digests of the files that hold a graph's weights, as far as model.json lists them.

    Raises ConfigurationError, and what `onnx.load` raises.
    """
    listed = {model.folder / name: name for name in model.description.files}
    for data in data_files(path) if listed else ():
        if data in listed:
            model.check_file(listed[data])


def tensors_outside(path: Path) -> list[TensorProto]:
    """Returns the weights that lie in files of the graph's folder, without their numbers."""
    return [tensor for tensor, _ in outside(onnx.load(path, load_external_data=False))]


def size(path: Path) -> int:
    """Returns the bytes of a graph, and of its weights in other files, which may hold more."""
    graph = onnx.load(path, load_external_data=False)
    lengths = [
        path.with_name(place.location).stat().st_size if place.length is None else place.length
        for _, place in outside(graph)
    ]
    return path.stat().st_size + sum(lengths)


def outside(graph: ModelProto) -> list[tuple[TensorProto, ExternalDataInfo]]:
    """Returns the weights that lie in files of the graph's folder, and where in these."""
    tensors = [tensor for tensor in graph.graph.initializer if uses_external_data(tensor)]
    places = [(tensor, ExternalDataInfo(tensor)) for tensor in tensors]
    return [pair for pair in places if Path(pair[1].location).name == pair[1].location != ""]
