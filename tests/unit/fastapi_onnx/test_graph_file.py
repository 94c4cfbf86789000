"""ONNX graphs with their weights in files beside them, also links to them, as in the Hub's cache."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fastapi_onnx import graph_file
from fastapi_onnx.backend import OnnxBackend
from smallplates.errors import ConfigurationError
from smallplates.models.description import ModelDescription
from smallplates.models.folder import Model
from tests.graphs import digest, model, node, tensors, value

WEIGHTS = {
    "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
    "offset": np.array([5, 6, 7, 8], np.float32),
    "none": np.empty((0, 4), np.float32),
}


def graph() -> onnx.ModelProto:
    nodes = [
        node("MatMul", "x matrix", "product"),
        node("Add", "product offset", "sum"),
        node("Concat", "sum none", "y", axis=0),
    ]
    return model(nodes, [value("x", axes=["N", 3])], [value("y", axes=["N", 4])], tensors(**WEIGHTS))


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """The graph, with its weights in `weights.data`."""
    path = tmp_path / "split" / "model.onnx"
    path.parent.mkdir()
    onnx.save_model(graph(), path, save_as_external_data=True, location="weights.data", size_threshold=0)
    return path


def links(path: Path, folder: Path) -> Path:
    """A folder of links to files that have other names, in another folder."""
    blobs, snapshot = folder / "blobs", folder / "snapshot"
    snapshot.mkdir()
    blobs.mkdir()
    for number, file in enumerate(path.parent.iterdir()):
        (snapshot / file.name).symlink_to(file.rename(blobs / str(number)))
    return snapshot / path.name


def relocated(path: Path, **entries: str) -> Path:
    """The graph with other entries about where its weights lie."""
    changed = onnx.load(path, load_external_data=False)
    for tensor in changed.graph.initializer:
        for entry in tensor.external_data:
            entry.value = entries.get(entry.key, entry.value)
    path.write_bytes(changed.SerializeToString())
    return path


@pytest.mark.parametrize("linked", [False, True])
def test_weights_in_a_file_beside_the_graph(split: Path, tmp_path: Path, linked: bool) -> None:
    path = links(split, tmp_path) if linked else split
    read = graph_file.read(path)
    assert read.graph.node == graph().graph.node
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in read.graph.initializer}
    assert list(weights) == list(WEIGHTS)
    for name, values in WEIGHTS.items():
        np.testing.assert_array_equal(weights[name], values, strict=True)
    assert graph_file.data_files(path) == {path.with_name("weights.data")}
    assert [tensor.name for tensor in graph_file.tensors_outside(path)] == list(WEIGHTS)
    size = sum(values.nbytes for values in WEIGHTS.values())
    assert graph_file.size(path) == path.stat().st_size + size


def test_a_graph_with_its_weights_inside(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(graph(), path)
    assert graph_file.read(path) == graph()
    assert graph_file.data_files(path) == set()
    assert graph_file.size(path) == path.stat().st_size


def test_weights_in_another_file_are_compared_with_their_digest(split: Path) -> None:
    weights = split.with_name("weights.data")
    description = ModelDescription(
        name="m", version="1", task="tensor", files={weights.name: digest(weights)}
    )
    graph_file.check_data(Model(split.parent, description), split)
    weights.write_bytes(bytes(weights.stat().st_size))
    graph_file.check_data(Model(split.parent, description.model_copy(update={"files": {}})), split)
    with pytest.raises(ConfigurationError, match=r"weights\.data does not match its SHA-256"):
        graph_file.check_data(Model(split.parent, description), split)


@pytest.mark.parametrize("location", ["../weights.data", "/etc/passwd", "..", "", "missing"])
def test_weights_elsewhere(split: Path, location: str) -> None:
    (split.parents[1] / "weights.data").write_bytes(bytes(100))
    path = relocated(split, location=location)
    with pytest.raises((onnx.checker.ValidationError, OSError)):
        graph_file.read(path)
    assert graph_file.data_files(path) == (
        {path.with_name("missing")} if location == "missing" else set()
    )


def test_weights_below_the_folder_are_among_what_a_model_is_measured_by(split: Path) -> None:
    (split.parent / "deep").mkdir()
    weights = split.with_name("weights.data").rename(split.parent / "deep" / "weights.data")
    path = relocated(split, location="deep/weights.data")
    assert set(OnnxBackend().weights(Model.read(path.parent))) == {path, weights}


def test_a_place_before_the_file(split: Path) -> None:
    with pytest.raises(ValueError, match="offset"):
        graph_file.read(relocated(split, offset="-8"))
