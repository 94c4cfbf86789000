"""Static quantisation of an ONNX graph by ONNX Runtime's own tools; for `int8.py`.

QDQ, activations uint8, weights int8 with a scale for each channel, biases corrected for what rounding
the weights does to the mean of each channel. The first two layers stay in fp32. Every calibration method
is tried. Where none is fit, the layers that cost most accuracy stay in fp32, too: first one, then two,
four, and so on. Where that does not help either, they are in int8, which is faster.
"""

import contextlib
import copy
import io
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import typer
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static
from tqdm import tqdm

from fastapi_onnx import gpu_graph, graph_file
from fastapi_onnx.normalisation import model_input
from smallplates.errors import library_errors
from smallplates.export.int8_verdict import Verdict
from smallplates.models.folder import Model

METHODS: dict[str, tuple[CalibrationMethod, dict[str, Any]]] = {
    "min-max": (CalibrationMethod.MinMax, {}),
    "entropy": (CalibrationMethod.Entropy, {}),
    "percentile 99.99": (CalibrationMethod.Percentile, {"CalibPercentile": 99.99}),
    "percentile 99.999": (CalibrationMethod.Percentile, {"CalibPercentile": 99.999}),
}
HEAVY = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
FIRST = 2
"""First layers that stay in fp32: they cost most accuracy in int8, and hardly take less time."""

SENSITIVITY_PHOTOS = 64
STRIDE = 8  # photos whose activations are in memory at a time


class Reader(CalibrationDataReader):
    """Normalised photos [N, 3, H, W], one at a time."""

    def __init__(self, name: str, tensors: NDArray[np.float32]) -> None:
        self._name = name
        self._tensors = tensors
        self._next, self._end = 0, len(tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Limits what `get_next` returns."""
        self._next, self._end = start_index, end_index

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        """Returns the next photo as the graph's input; None after the last one."""
        if self._next == self._end:
            return None
        self._next += 1
        return {self._name: self._tensors[self._next - 1 : self._next]}


class Quantiser:
    """Writes int8 graphs of one model, and keeps the ranges of each calibration for the next graph."""

    def __init__(self, model: Model, pixels: NDArray[np.uint8], out: Path, folder: Path) -> None:
        """Simplifies the model's graph. Raises ConfigurationError.

        `pixels` [N, height, width, 3] are the photos for calibration. Graphs are written to `out`,
        temporary files to `folder`.
        """
        self._out = out
        self._folder = folder
        self._tensors = gpu_graph.normalise(pixels, model.description.pipeline)
        with library_errors("the graph cannot be simplified"):
            graph, _ = gpu_graph.simplify(graph_file.read(model.file("model.onnx")))
            for index, node in enumerate(graph.graph.node):
                node.name = node.name or f"{node.op_type}_{index}"
            self._input = model_input(graph).name
            self._lost = means_lost(graph, Reader(self._input, self._tensors))
        self._graph = folder / "fp32.onnx"
        onnx.save(graph, self._graph)
        self.heavy_nodes = [node.name for node in graph.graph.node if node.op_type in HEAVY]

    def write(self, method: str, exclude: Sequence[str] = (), only: Sequence[str] = ()) -> None:
        """Writes a graph whose nodes are in int8, without `exclude`, or `only` these if there are some.

        Raises ConfigurationError for a graph that the library cannot take.
        """
        kind, options = METHODS[method]
        stride = min(STRIDE, len(self._tensors))
        count = len(self._tensors) // stride * stride
        ranges, corrected = self._folder / f"{method}.json", self._folder / "corrected.onnx"
        chosen = set(only or self._lost) - set(exclude)
        onnx.save(with_biases(onnx.load(self._graph), self._lost, chosen), corrected)
        # the ranges are measured without the correction, which weights in fp32 don't need
        graphs = [corrected] if ranges.exists() else [self._graph, corrected]
        problem = library_errors("ONNX Runtime cannot quantise the graph")
        with problem, contextlib.redirect_stdout(io.StringIO()), silent_logging():
            for graph in graphs:
                quantize_static(
                    graph,
                    self._out,
                    Reader(self._input, self._tensors[:count]),
                    per_channel=True,
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8,
                    nodes_to_quantize=list(only),
                    nodes_to_exclude=list(exclude),
                    calibrate_method=kind,
                    extra_options={**options, "CalibStridedMinMax": stride},
                    calibration_cache_path=ranges,
                )


def means_lost(graph: onnx.ModelProto, photos: Reader) -> dict[str, NDArray[np.float32]]:
    """Returns what each node's channels [C] lose on average if its weights are rounded to int8.

    Each node gets a twin that applies what rounding takes from the weights to the same input. (Nagel et
    al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019, section 4.2)
    """
    twins = copy.deepcopy(graph)
    constants = {tensor.name: tensor for tensor in graph.graph.initializer}
    nodes = [
        node
        for node in graph.graph.node
        if node.op_type in {"Conv", "Gemm"} and constants.keys() >= {*node.input[1:]}
    ]
    for node in nodes:
        weights = numpy_helper.to_array(constants[node.input[1]])
        flipped = node.op_type == "Gemm" and not any(a.name == "transB" and a.i for a in node.attribute)
        others = tuple(axis for axis in range(weights.ndim) if axis != int(flipped))
        steps = np.abs(weights).max(others, keepdims=True) / 127
        scale = np.maximum(steps, np.finfo(weights.dtype).tiny)  # a channel's weights may all be 0
        taken = weights - np.round(weights / scale) * scale
        name = f"{node.name}_twin"
        twins.graph.initializer.append(numpy_helper.from_array(taken, f"{name}_weights"))
        twin = copy.deepcopy(node)
        twin.name, twin.input[:], twin.output[:] = name, [node.input[0], f"{name}_weights"], [name]
        twins.graph.node.append(twin)
        twins.graph.output.append(onnx.ValueInfoProto(name=name))
    names = [node.name for node in nodes]
    session = ort.InferenceSession(twins.SerializeToString(), providers=["CPUExecutionProvider"])
    means: dict[str, list[NDArray[np.float32]]] = {name: [] for name in names}
    while names and (photo := photos.get_next()):
        outputs = session.run([f"{name}_twin" for name in names], photo)
        for name, output in zip(names, outputs, strict=True):
            means[name].append(output.mean((0, *range(2, output.ndim))))
    return {name: np.mean(every, axis=0) for name, every in means.items()}


def with_biases(
    graph: onnx.ModelProto, lost: dict[str, NDArray[np.float32]], names: Iterable[str]
) -> onnx.ModelProto:
    """Adds to the biases of the nodes `names`, in place, what their channels lose; returns the graph."""
    constants = {tensor.name: tensor for tensor in graph.graph.initializer}
    for node in [node for node in graph.graph.node if node.name in lost.keys() & names]:
        bias = numpy_helper.to_array(constants[node.input[2]]) if len(node.input) > 2 else 0
        name = f"{node.name}_corrected_bias"  # the node's own, even if it shared the former one
        graph.graph.initializer.append(numpy_helper.from_array(bias + lost[node.name], name))
        node.input[2:] = [name]
    return graph


def search(
    quantiser: Quantiser,
    judge: Callable[[str, list[str]], Verdict],
    difference: Callable[[int], float],
    end: float,
) -> Verdict:
    """Writes the best graph that is found before `end`, a `time.monotonic()` time; returns its verdict.

    A graph that is not fit has all layers but the first ones in int8. `judge` judges the file as it is;
    `difference` returns its mean difference of a probability from fp32 on some photos. Raises
    ConfigurationError.
    """
    best: Verdict | None = None
    first = quantiser.heavy_nodes[:-1][:FIRST]
    for method in METHODS:
        if best and time.monotonic() > end:
            break
        quantiser.write(method, exclude=first)
        best = better(best, show(judge(method, first)))
    assert best is not None  # noqa: S101 the first method is always tried
    if not best.fit:
        ranked = most_sensitive(quantiser, best.method, difference, end)
        layers = first + [name for name in ranked if name not in first]
        count = 1
        while len(first) + count < len(layers) and time.monotonic() < end:
            exclude = layers[: len(first) + count]
            quantiser.write(best.method, exclude=exclude)
            verdict = show(judge(best.method, exclude))
            if verdict.fit:
                return verdict
            count *= 2
    quantiser.write(best.method, exclude=first)
    return best


def show(verdict: Verdict) -> Verdict:
    """Prints a verdict in one line, and returns it."""
    layers = f", {len(verdict.fp32_nodes)} layers in fp32" if verdict.fp32_nodes else ""
    typer.echo(f"{verdict.method}{layers}: {verdict.reason}; mean difference {verdict.mean_difference}")
    return verdict


def better(before: Verdict | None, after: Verdict) -> Verdict:
    """Returns the verdict that is fit if the other is not, or else the one that is closer to fp32."""
    if before is None or after.fit > before.fit:
        return after
    closer = after.mean_difference < before.mean_difference
    return after if closer and after.fit == before.fit else before


def most_sensitive(
    quantiser: Quantiser, method: str, difference: Callable[[int], float], end: float
) -> list[str]:
    """Returns the layers by how much the answers change where only that layer is in int8, most first.

    Layers that are not tried before `end`, a `time.monotonic()` time, are left out.
    """
    differences: dict[str, float] = {}
    for name in tqdm(quantiser.heavy_nodes, desc="layers", leave=False, delay=2):
        if time.monotonic() > end:
            typer.echo(f"time ran out after {len(differences)} of {len(quantiser.heavy_nodes)} layers")
            break
        quantiser.write(method, only=[name])
        differences[name] = difference(SENSITIVITY_PHOTOS)
    return sorted(differences, key=differences.__getitem__, reverse=True)


@contextlib.contextmanager
def silent_logging() -> Iterator[None]:
    """Drops the library's advice, which this module follows by other means."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
