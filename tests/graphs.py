"""ONNX graphs made on the spot."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fastapi_onnx.backend import OnnxBackend
from smallplates.models.folder import Model
from smallplates.models.tensors import Signature

Axes = Sequence[int | str | None] | None


def value(name: str, kind: int = TensorProto.FLOAT, axes: Axes = ("N",)) -> onnx.ValueInfoProto:
    """An input or output; an axis is a size, a name or nothing; without axes their number is open."""
    return helper.make_tensor_value_info(name, kind, axes)


def tensors(**arrays: Any) -> list[onnx.TensorProto]:
    """Weights by their names: arrays, or numbers of Python, whose integers are INT64."""
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
    opset: int = 18,
    ir_version: int = 10,
) -> onnx.ModelProto:
    """A graph of these."""
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(weights))
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """An operator; names are separated by blanks."""
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def saved(made: onnx.ModelProto, folder: Path, version: str | None = None) -> Path:
    """The folder, which then holds the graph, without a model.json."""
    path = folder / version / "model.onnx" if version else folder / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, path)
    return folder


def digest(file: Path) -> str:
    """The file's SHA-256, as model.json has it."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def compared(read: Model) -> Signature:
    """How ONNX Runtime serves a model's graph, after made-up items have been compared."""
    declared = OnnxBackend().signature(read)
    return [declared, *OnnxBackend().compare_items(read, declared)][-1]


def two_by_two(batch: int | str | None = "N") -> onnx.ModelProto:
    """Inputs `a` FP32 [2] and `b` INT64 [2]; outputs `sum` FP32 [2] and `more` BOOL [2], a > b."""
    nodes = [
        node("Cast", "b", "c", to=TensorProto.FLOAT),
        node("Add", "a c", "sum"),
        node("Greater", "a c", "more"),
    ]
    inputs = [value("a", axes=[batch, 2]), value("b", TensorProto.INT64, [batch, 2])]
    outputs = [value("sum", axes=[batch, 2]), value("more", TensorProto.BOOL, [batch, 2])]
    return model(nodes, inputs, outputs)


def nonzero() -> onnx.ModelProto:
    """Input `x` FP32 [N, n]; output `places` INT64 [2, found], and `twice` FP32 [N, n]."""
    inputs = [value("x", axes=["N", "n"])]
    nodes = [node("NonZero", "x", "places"), node("Add", "x x", "twice")]
    outputs = [value("places", TensorProto.INT64, [2, "found"]), value("twice", axes=["N", "n"])]
    return model(nodes, inputs, outputs)


SPLIT: dict[str, Any] = {
    "domain": "ai.onnx.ml",
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
"""Attributes of a tree that splits by whether the second number is at most 0.5."""


def trees(label_axis: int | str | None = None, **labels: Any) -> onnx.ModelProto:
    """Input `X` FP32 [N, 2]; outputs `label` [N] and `probabilities` FP32 [N, 3], of a single tree.

    `labels` are the attributes of its classes, by default 0 to 2. `label_axis` is what the graph says
    about the label's shape.
    """
    labels = labels or {"classlabels_int64s": [0, 1, 2]}
    tree = node(
        "TreeEnsembleClassifier",
        "X",
        "label probabilities",
        **SPLIT,
        class_treeids=[0] * 6,
        class_nodeids=[1, 1, 1, 2, 2, 2],
        class_ids=[0, 1, 2, 0, 1, 2],
        class_weights=[0.75, 0.25, 0.0, 0.0, 0.125, 0.875],
        post_transform="NONE",
        **labels,
    )
    kind = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
    outputs = [value("label", kind, [label_axis]), value("probabilities", axes=[None, 3])]
    made = model([tree], [value("X", axes=[None, 2])], outputs)
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return made


def with_zip_map(made: onnx.ModelProto) -> onnx.ModelProto:
    """What converters make of `trees` by default: dictionaries instead of the probabilities."""
    labels = {"classlabels_int64s": [0, 1, 2]}
    made.graph.node.append(node("ZipMap", "probabilities", "mapped", domain="ai.onnx.ml", **labels))
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    mapping = helper.make_map_type_proto(TensorProto.INT64, number)
    output = made.graph.output[1]
    output.name = "mapped"
    output.type.CopyFrom(helper.make_sequence_type_proto(mapping))
    return made


def mean_colour(size: int | str = "height") -> onnx.ModelProto:
    """Input `pixel_values` FP32 [N, 3, size, size]; output `logits` [N, 3], the mean of each channel."""
    nodes = [node("GlobalAveragePool", "pixel_values", "means"), node("Flatten", "means", "logits")]
    inputs = [value("pixel_values", axes=["batch_size", 3, size, size])]
    return model(nodes, inputs, [value("logits", axes=["batch_size", 3])])


def question_answering(
    embeddings: NDArray[np.float32],
    names: Sequence[str] = ("input_ids", "attention_mask"),
    axes: Axes = ("batch_size", "sequence_length"),
    outputs: Sequence[str] = ("start_logits", "end_logits"),
) -> onnx.ModelProto:
    """Inputs of these names, of tokens; outputs FP32 [N, n], the `embeddings` [vocabulary, 2]."""
    weights = tensors(embeddings=embeddings.astype(np.float32), last=[2])
    nodes = [
        node("Gather", "embeddings input_ids", "found"),
        node("Split", "found", "starts ends", axis=2, num_outputs=2),
        node("Squeeze", "starts last", outputs[0]),
        node("Squeeze", "ends last", outputs[1]),
    ]
    inputs = [value(name, TensorProto.INT64, axes) for name in names]
    return model(nodes, inputs, [value(name, axes=axes) for name in outputs], weights)


def token_classifier(
    embeddings: NDArray[np.float32], names: Sequence[str] = ("input_ids", "attention_mask")
) -> onnx.ModelProto:
    """Inputs of these names, of tokens; output `logits` FP32 [N, n, labels]: their `embeddings`."""
    weights = tensors(embeddings=embeddings.astype(np.float32))
    axes = ("batch_size", "sequence_length")
    inputs = [value(name, TensorProto.INT64, axes) for name in names]
    output = value("logits", axes=[*axes, embeddings.shape[1]])
    return model([node("Gather", "embeddings input_ids", "logits")], inputs, [output], weights)


def last_token_classifier(embeddings: NDArray[np.float32], positions: int = 64) -> onnx.ModelProto:
    """Inputs `input_ids` and `attention_mask`; `logits` are the `embeddings` of the last place.

    The graph fails for a text of more tokens than `positions`.
    """
    places = np.zeros((positions + 1, 1), np.float32)
    weights = tensors(embeddings=embeddings.astype(np.float32), positions=places, last=-1)
    nodes = [
        node("Gather", "input_ids last", "ids", axis=1),
        node("Gather", "embeddings ids", "embedded"),
        node("Shape", "input_ids", "length", start=1),
        node("Gather", "positions length", "position"),
        node("Add", "embedded position", "logits"),
    ]
    axes = ("batch_size", "sequence_length")
    inputs = [value(name, TensorProto.INT64, axes) for name in ("input_ids", "attention_mask")]
    return model(nodes, inputs, [value("logits", axes=["batch_size", embeddings.shape[1]])], weights)


def encoder(
    embeddings: NDArray[np.float32],
    names: Sequence[str] = ("input_ids", "attention_mask"),
    output: str = "last_hidden_state",
    opset: int = 18,
) -> onnx.ModelProto:
    """Inputs of these names, of tokens; output FP32 [N, n, size], each token's `embeddings`.

    They are multiplied by the place of the token, from 1, so that no pooling is like another.
    """
    factors = np.arange(1, 65, dtype=np.float32)[:, None]
    weights = tensors(embeddings=embeddings.astype(np.float32), factors=factors, zero=[0], one=[1])
    nodes = [
        node("Gather", "embeddings input_ids", "found"),
        node("Shape", "input_ids", "shape"),
        node("Gather", "shape one", "length"),
        node("Slice", "factors zero length zero", "places"),
        node("Mul", "found places", output),
    ]
    axes = ("batch_size", "sequence_length")
    inputs = [value(name, TensorProto.INT64, axes) for name in names]
    outputs = [value(output, axes=[*axes, embeddings.shape[1]])]
    return model(nodes, inputs, outputs, weights, opset)


def text_classifier(
    embeddings: NDArray[np.float32],
    names: Sequence[str] = ("input_ids", "attention_mask"),
    kind: int = TensorProto.INT64,
    axes: Axes = ("batch_size", "sequence_length"),
) -> onnx.ModelProto:
    """Inputs of these names, of tokens; output `logits` FP32 [N, labels].

    The logits are the mean of the tokens' `embeddings` [vocabulary, labels] under the attention mask,
    ten times as much for a token of type 1.
    """
    inputs = [value(name, kind, axes) for name in names]
    weights = tensors(embeddings=embeddings.astype(np.float32), last=[-1], tokens=[1])
    nodes = [node("Gather", "embeddings input_ids", "found")]
    if "token_type_ids" in names:
        weights += tensors(of_types=np.array([1, 10], np.float32))
        nodes += [
            node("Gather", "of_types token_type_ids", "factors"),
            node("Unsqueeze", "factors last", "wide_factors"),
            node("Mul", "found wide_factors", "typed"),
        ]
    else:
        nodes.append(node("Identity", "found", "typed"))
    mask = "attention_mask" if "attention_mask" in names else "input_ids"
    nodes.append(node("Cast", mask, "number", to=TensorProto.FLOAT))
    if mask == "input_ids":
        nodes += [node("Sub", "number number", "zeros"), node("Exp", "zeros", "mask")]
    else:
        nodes.append(node("Identity", "number", "mask"))
    nodes += [
        node("Unsqueeze", "mask last", "wide_mask"),
        node("Mul", "typed wide_mask", "masked"),
        node("ReduceSum", "masked tokens", "sums", keepdims=0),
        node("ReduceSum", "mask tokens", "counts", keepdims=1),
        node("Div", "sums counts", "logits"),
    ]
    outputs = [value("logits", axes=["batch_size", embeddings.shape[1]])]
    return model(nodes, inputs, outputs, weights)
