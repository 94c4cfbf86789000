"""ONNX files from users: changes a graph to the form that is served, and tries it; for `cli/export.py`.

The served form has one input, float [N, 3, H, W], one output, float logits [N, classes], and an open N.
Users' files have fixed batch sizes, half precision, channels last, a softmax at the end, more outputs.
A few nodes at the graph's borders mend most of that; for the rest, errors say what to change.
"""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

from fastapi_onnx.logits import without_softmax
from fastapi_onnx.normalisation import PIXELS, TENSOR, model_inputs, with_two_inputs
from fastapi_onnx.sessions import cpu_session
from smallplates.errors import ConfigurationError, library_errors
from smallplates.models.description import ImagePipeline
from smallplates.models.scores import are_probabilities
from smallplates.settings import Settings
from smallplates.worker import precision_check

Size = tuple[int, int]

NUMBERS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
INPUT, OUTPUT = "served_input", "served_output"
ONE_AT_A_TIME = (
    "it computes one image at a time: export it again with a variable batch dimension "
    "(torch.onnx.export: dynamic_shapes, or dynamic_axes), or serve it with SERVING_MAX_BATCH_SIZE=1"
)


def read(path: Path) -> ModelProto:
    """Reads a file, with the weights beside it. Raises ConfigurationError and OSError."""
    with path.open("rb"):
        pass  # for a missing file or a folder OSError is clearer than onnx
    with library_errors(f"{path} is not an ONNX file that can be used"):
        onnx.checker.check_model(str(path), full_check=True)
        return onnx.load(path)


def convert(model: ModelProto, size: Size, output: str | None) -> tuple[ModelProto, list[str]]:
    """Returns the model in the served form, and notes on what was changed.

    `size` is the images' (height, width), `output` the name of the logits, by default the first output.
    Raises ConfigurationError for what cannot be changed.
    """
    result = ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    del graph.value_info[:]  # inferred for the old batch size
    result.ir_version = max(4, result.ir_version)  # older versions want weights among the inputs
    notes = [*open_input(graph, size), *open_output(graph, output)]
    onnx.checker.check_model(result)
    return result, notes


def open_input(graph: GraphProto, size: Size) -> list[str]:
    """Makes the graph's only input float [N, 3, height, width]; returns notes on the changes.

    Raises ConfigurationError.
    """
    inputs = model_inputs(graph)
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs) or "none"
        raise ConfigurationError(f"the graph must have exactly one input, for images; it has: {names}")
    (value,) = inputs
    kind, lengths = value.type.tensor_type.elem_type, dimensions(value)
    if kind not in NUMBERS:
        raise ConfigurationError(
            f"the input {value.name!r} is {TensorProto.DataType.Name(kind).lower()}: export the network "
            "without its own preprocessing, float [N, 3, H, W]; --mean and --std do it instead"
        )
    last = len(lengths) == 4 and lengths[3] == 3 and lengths[1] != 3
    sides = lengths[1:3] if last else lengths[2:]
    if len(lengths) != 4 or (not last and lengths[1] not in (3, 0)):
        raise ConfigurationError(
            f"the input {value.name!r} has the shape {lengths}: [N, 3, H, W] is needed, for RGB images"
        )
    if any(length not in (0, side) for length, side in zip(sides, size, strict=True)):
        raise ConfigurationError(
            f"the graph takes images of {'x'.join(map(str, sides))} pixels, but the options make "
            f"them {size[0]}x{size[1]}: see --resize, --center-crop, --enlarge"
        )
    nodes, notes, name = [], [], value.name
    if last:
        nodes.append(helper.make_node("Transpose", [INPUT], [name], perm=[0, 2, 3, 1]))
        notes.append("its channels are the last dimension: a Transpose is put in front")
    if kind != TensorProto.FLOAT:
        before = name if not nodes else f"{INPUT}_cast"
        for node in nodes:
            node.input[0] = before
        nodes.insert(0, helper.make_node("Cast", [INPUT], [before], to=kind))
        notes.append("its input is not float32: a Cast is put in front")
    del graph.input[:]
    graph.input.append(
        helper.make_tensor_value_info(INPUT if nodes else name, TensorProto.FLOAT, ["N", 3, *size])
    )
    for node in reversed(nodes):  # before all others: a graph's nodes are in the order of computation
        graph.node.insert(0, node)
    return notes


def open_output(graph: GraphProto, choice: str | None) -> list[str]:
    """Makes the graph's only output float [N, classes] without a softmax; returns notes on the changes.

    Raises ConfigurationError.
    """
    outputs = {value.name: value for value in graph.output}
    if choice is not None and choice not in outputs:
        raise ConfigurationError(
            f"the graph has no output {choice!r}; its outputs are {', '.join(outputs)}"
        )
    name = choice or next(iter(outputs), "")
    notes = []
    if len(outputs) > 1:
        notes.append(f"of its outputs {', '.join(outputs)} {name} is served; --output names another")
    output = outputs[name]
    kind, rank = output.type.tensor_type.elem_type, len(dimensions(output))
    if kind not in NUMBERS:
        raise ConfigurationError(
            f"the output {name!r} is {TensorProto.DataType.Name(kind).lower()}: logits are needed, "
            "float [N, classes]"
        )
    if without_softmax(graph, name):
        notes.append("the Softmax at its end is removed: the service computes probabilities")
    if rank > 2:
        graph.node.append(helper.make_node("Flatten", [name], [f"{OUTPUT}_flat"]))
        name = f"{OUTPUT}_flat"
    if kind != TensorProto.FLOAT:
        graph.node.append(helper.make_node("Cast", [name], [OUTPUT], to=TensorProto.FLOAT))
        name = OUTPUT
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", None]))
    return notes


def dimensions(value: ValueInfoProto) -> list[int]:
    """Returns a tensor's lengths; 0 is an open one."""
    return [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]


def try_out(model: ModelProto, image: ImagePipeline, classes: int) -> list[str]:
    """Computes images as the service does; returns notes for the user.

    Raises ConfigurationError if the answers are not logits of this many classes.
    """
    with library_errors("ONNX Runtime cannot load the graph"):
        session = cpu_session(
            lambda: with_two_inputs(model, image).SerializeToString(), Settings(device="cpu"), None
        )
    images = precision_check.sample_images(image.output_size)[:2]
    no_tensor = np.empty((0, 3, *image.output_size), np.float32)

    def answers(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = session.run(None, {PIXELS: pixels, TENSOR: no_tensor})[0]
        return logits

    with library_errors("the graph cannot compute an image"):
        alone = [answers(image[np.newaxis]) for image in images]
    for logits in alone:
        check(logits, classes)
    try:
        together = answers(images)
    except Exception:  # of any type; single images work
        return [ONE_AT_A_TIME]
    expected = np.concatenate(alone)
    same = together.shape == expected.shape and np.allclose(together, expected, rtol=1e-2, atol=1e-3)
    return [] if same else [ONE_AT_A_TIME]


def check(logits: NDArray[np.float32], classes: int) -> None:
    """Raises ConfigurationError unless these are the logits [1, classes] of one image."""
    if logits.shape != (1, classes):
        raise ConfigurationError(
            f"the graph returns the shape {list(logits.shape)} for one image; "
            f"{classes} labels need [1, {classes}] (--output names another output)"
        )
    if not np.isfinite(logits).all():
        raise ConfigurationError(
            "the graph returns numbers that are not finite: its weights are damaged"
        )
    if are_probabilities(logits):
        raise ConfigurationError(
            "the graph returns probabilities: export the network without its softmax, which the "
            "service computes"
        )
