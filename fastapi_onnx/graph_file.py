"""ONNX graphs whose weights lie in other files beside them, as PyTorch's exporter writes them."""

from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data


def read(path: Path) -> ModelProto:
    """Reads a graph with all its weights.

    In the Hugging Face Hub's cache, files are links to others, which `onnx.load` refuses. Raises what
    `onnx.load` raises.
    """
    graph = onnx.load(path, load_external_data=False)
    for tensor, data in outside(graph, path):
        with data.open("rb") as file:
            file.seek(ExternalDataInfo(tensor).offset or 0)
            tensor.raw_data = file.read(ExternalDataInfo(tensor).length)
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    load_external_data_for_model(graph, str(path.parent))  # the others, or an error
    return graph


def data_files(path: Path) -> set[Path]:
    """Returns the files that hold a graph's weights; mostly there are none."""
    graph = onnx.load(path, load_external_data=False)
    return {data for _, data in outside(graph, path)}


def outside(graph: ModelProto, path: Path) -> list[tuple[TensorProto, Path]]:
    """Returns the weights that lie in files of the graph's folder, and these files."""
    tensors = [tensor for tensor in graph.graph.initializer if uses_external_data(tensor)]
    places = [(tensor, ExternalDataInfo(tensor).location) for tensor in tensors]
    return [(tensor, path.with_name(name)) for tensor, name in places if Path(name).name == name != ""]
