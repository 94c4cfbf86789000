"""`smallplates.export.given_graph`: ONNX files as others make them, brought to the form that is
served.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto

from fastapi_onnx import gpu_graph
from fastapi_onnx.backend import OnnxBackend
from smallplates.cli import export
from smallplates.errors import ConfigurationError
from smallplates.export import given_graph
from smallplates.models.description import ImagePipeline
from smallplates.models.folder import Model
from smallplates.models.scores import softmax
from smallplates.settings import Settings
from smallplates.tasks.image_classification import compute_logits
from tests import command_line, graphs
from tests.graphs import node, tensors, value

pytestmark = [pytest.mark.slow, pytest.mark.torch]

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
PIPELINE = ImagePipeline(resize=(6, 8), mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))


def chain(*steps: str, end: str = "y", **attributes: Any) -> list[NodeProto]:
    """Operators from `x` to `end`, one after the other; the first has the attributes."""
    names = ["x", *(f"{step} of {number}" for number, step in enumerate(steps[:-1])), end]
    firsts = [attributes, *({} for _ in steps[1:])]
    return [
        onnx.helper.make_node(step, [names[number]], [names[number + 1]], **firsts[number])
        for number, step in enumerate(steps)
    ]


POOLED = chain("GlobalAveragePool", end="pooled")
MEANS = chain("GlobalAveragePool", "Flatten", end="means")
SAME = [*MEANS, node("Identity", "means", "y")]
MEAN_OF_EACH_CHANNEL = chain("GlobalAveragePool", "Flatten")
CHANNELS_LAST = chain("Transpose", "GlobalAveragePool", "Flatten", perm=[0, 3, 1, 2])
OF_BYTES = chain("Cast", "GlobalAveragePool", "Flatten", to=FLOAT)
SOFTMAX = chain("GlobalAveragePool", "Flatten", "Softmax")
LOG_OF_ZERO = [*MEANS, node("Sub", "means means", "zero"), node("Log", "zero", "y")]
TWICE = [*MEANS, node("Concat", "means means", "y", axis=1)]
CENTRED = [
    *POOLED,
    node("ReduceMean", "pooled", "m", axes=[0], keepdims=1),
    node("Sub", "pooled m", "d"),
    node("Flatten", "d", "y"),
]
SCALE = tensors(scale=np.array([[1, 2, 3]], np.float32))


def changed_probabilities(operator: str) -> list[NodeProto]:
    """Probabilities, and an operator behind them."""
    return chain("GlobalAveragePool", "Flatten", "Softmax", operator)


LIMITS = tensors(low=np.float32(0.1), high=np.float32(0.5))
BEHIND = [
    changed_probabilities("Identity"),
    [*chain("GlobalAveragePool", "Flatten", "Softmax", end="p"), node("Clip", "p low high", "y")],
    [*chain("GlobalAveragePool", end="p"), node("Softmax", "p", "q", axis=1), node("Flatten", "q", "y")],
]


def with_scale(operator: str) -> list[NodeProto]:
    """The channels' means, and 1, 2, 3 combined with them."""
    return [*MEANS, node(operator, "means scale", "y")]


def graph(
    shape: Sequence[int | str],
    nodes: list[NodeProto],
    kind: int = FLOAT,
    outputs: Sequence[str] = ("y",),
    weights: Sequence[onnx.TensorProto] = (),
    ir_version: int = 9,
) -> ModelProto:
    """From `x` to `outputs`; old files list their weights among the inputs."""
    inputs = [value("x", kind, shape)]
    if ir_version < 4:
        inputs += [value(weight.name, weight.data_type, weight.dims) for weight in weights]
    answer = HALF if kind == HALF else FLOAT
    answers = [value(name, answer, [shape[0], None]) for name in outputs]
    return graphs.model(nodes, inputs, answers, weights, opset=13, ir_version=ir_version)


def exported(model: ModelProto, folder: Path, *options: str, code: int = 0) -> str:
    """What the export says; it ends with this code."""
    file, labels = folder / "given.onnx", folder / "labels.txt"
    file.write_bytes(model.SerializeToString())
    labels.write_text("Käse\n豆腐\nelk\n", encoding="utf-8")
    arguments = ["--file", str(file), "--labels", str(labels), "--resize", "6x8", "--name", "given"]
    mean, std = (map(str, values) for values in (PIPELINE.mean, PIPELINE.std))
    arguments += ["--mean", *mean, "--std", *std, "--out", str(folder / "out")]
    return command_line.run(export.app, "onnx", *arguments, *options, code=code)


def means(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    answer: NDArray[np.float32] = gpu_graph.normalise(pixels, PIPELINE).mean((2, 3))
    return answer


@pytest.mark.parametrize(
    ("model", "words", "factor"),
    [
        (graph(["batch_size", 3, 6, 8], MEAN_OF_EACH_CHANNEL), "", 1),
        (graph([1, 3, 6, 8], MEAN_OF_EACH_CHANNEL), "", 1),
        (graph(["N", 3, 6, 8], MEAN_OF_EACH_CHANNEL, HALF), "a Cast is put in front", 1),
        (graph(["N", 6, 8, 3], CHANNELS_LAST), "a Transpose is put in front", 1),
        (graph(["N", 6, 8, 3], CHANNELS_LAST, HALF), "a Cast is put in front", 1),
        (graph(["N", 3, 6, 8], SOFTMAX), "Softmax at its end is removed", 1),
        (graph(["N", 3, 6, 8], SOFTMAX, HALF), "Softmax at its end is removed", 1),
        *(
            (graph(["N", 3, 6, 8], nodes, weights=LIMITS), "Softmax at its end is removed", 1)
            for nodes in BEHIND
        ),
        (graph(["N", 3, 6, 8], SAME, outputs=("y", "means")), "y is served", 1),
        (graph([1, 3, 6, 8], with_scale("Mul"), weights=SCALE, ir_version=3), "", 3),
    ],
    ids=[
        *("open", "one", "half", "last", "half-last", "softmax", "half-softmax"),
        *("identity", "clip", "two", "two-outputs", "old"),
    ],
)
def test_what_others_export_is_served(
    tmp_path: Path, model: ModelProto, words: str, factor: int
) -> None:
    said = exported(model, tmp_path)
    assert words in said
    assert "SERVING_MAX_BATCH_SIZE" not in said
    served = Model.read(tmp_path / "out")
    assert served.labels == ["Käse", "豆腐", "elk"]
    backend = OnnxBackend()
    backend.load(served, Settings(device="cpu"))
    pixels = np.random.default_rng(1).integers(0, 256, (3, 6, 8, 3), np.uint8)
    expected = (means(pixels) * np.linspace(1, factor, 3)).astype(np.float32)
    np.testing.assert_allclose(softmax(compute_logits(backend, pixels)), softmax(expected), atol=2e-3)


def test_an_output_is_chosen_by_its_name(tmp_path: Path) -> None:
    other = node("Concat", "y y", "features", axis=1)
    model = graph(["N", 3, 6, 8], [*MEAN_OF_EACH_CHANNEL, other], outputs=("features", "y"))
    assert "[1, 6]" in exported(model, tmp_path, code=1)
    exported(model, tmp_path, "--output", "y")
    assert "features, y" in exported(model, tmp_path, "--output", "z", code=1)


@pytest.mark.parametrize(
    "model",
    [
        graph(
            [1, 3, 6, 8], [*POOLED, node("Reshape", "pooled shape", "y")], weights=tensors(shape=[1, -1])
        ),
        graph(["N", 3, 6, 8], CENTRED),
    ],
    ids=["one at a time", "pictures meddle with each other"],
)
def test_a_graph_that_computes_only_single_pictures_is_said_to(
    tmp_path: Path, model: ModelProto
) -> None:
    assert "SERVING_MAX_BATCH_SIZE=1" in exported(model, tmp_path)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (graph(["N", 3, 6, 8], OF_BYTES, TensorProto.UINT8), "is uint8"),
        (graph(["N", 1, 6, 8], MEAN_OF_EACH_CHANNEL), "RGB"),
        (graph(["N", 3, 8, 6], MEAN_OF_EACH_CHANNEL), "takes images of 8x6 pixels"),
        (graph(["N", 3], chain("Identity")), "[N, 3, H, W]"),
        (graph(["N", 3, 6, 8], with_scale("Add")), "not an ONNX file that can be used"),
        (graph(["N", 3, 6, 8], LOG_OF_ZERO), "not finite"),
        (graph(["N", 3, 6, 8], TWICE), "3 labels"),
        (graph(["N", 3, 6, 8], changed_probabilities("Relu")), "without its softmax"),
        (graph(["N", 3, 6, 8], chain("GlobalAveragePool", "Flatten", "Sigmoid")), "remove the Sigmoid"),
    ],
    ids=["uint8", "grey", "size", "rank", "broken", "nan", "classes", "probabilities", "sigmoid"],
)
def test_what_cannot_be_served_is_named(tmp_path: Path, model: ModelProto, words: str) -> None:
    said = exported(model, tmp_path, code=1)
    assert said.startswith("nothing was exported: ")
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html>", b"\x08\x09" * 99])
def test_what_is_no_onnx_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "given.onnx"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"given\.onnx is not an ONNX file"):
        given_graph.read(path)
