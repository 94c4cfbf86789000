"""Pooling in an encoder's graph, so that one vector for each text leaves it, and not one for each token.

The operators and their arguments are the same in all opsets from 11 on. Called by `network.py` and
`signature.py`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fastapi_onnx.normalisation import model_inputs
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.models.sentence_transformers import read_dense

VECTOR = "sentence_embedding"
STATES = ("last_hidden_state", "token_embeddings")
IDS, MASK = "input_ids", "attention_mask"
PREFIX = "pooling_"
LEAST = np.float32(1e-9)
FAR = np.float32(1e9)

Nodes = list[onnx.NodeProto]


def with_vectors(graph: onnx.ModelProto, model: Model) -> onnx.ModelProto:
    """Returns the graph that computes VECTOR [N, size]: the same one, changed in place if it lacks that.

    Raises ConfigurationError.
    """
    if model.description.embedding is None or has_vectors(graph):
        return graph
    nodes = NodeBuilder(graph.graph)
    pipeline, states = model.description.embedding, states_of(graph.graph)
    vectors = [nodes.pool(pooling, states) for pooling in pipeline.pooling.split("+")]
    vector = nodes.add("Concat", *vectors, axis=1)
    for place in pipeline.dense:
        vector = nodes.linear(vector, model.folder / place)
    graph.graph.node.append(helper.make_node("Identity", [vector], [VECTOR]))
    del graph.graph.output[:]
    graph.graph.output.append(helper.make_tensor_value_info(VECTOR, TensorProto.FLOAT, [None, None]))
    return graph


def has_vectors(graph: onnx.ModelProto) -> bool:
    """Returns whether the graph was exported with its pooling."""
    return any(output.name == VECTOR for output in graph.graph.output)


def needs_vectors(path: Path, model: Model) -> bool:
    """Returns whether pooling is to be added to the graph in a file. Raises onnx's errors."""
    return model.description.embedding is not None and not has_vectors(
        onnx.load(path, load_external_data=False)
    )


def states_of(graph: onnx.GraphProto) -> str:
    """Returns the name of the output [N, tokens, size]. Raises ConfigurationError."""
    names = [output.name for output in graph.output]
    for name in STATES:
        if name in names:
            return name
    raise ConfigurationError(
        f"an encoder needs the output {' or '.join((VECTOR, *STATES))}; the graph has {', '.join(names)}"
    )


class NodeBuilder:
    """Nodes that are added to the end of a graph; each method returns the name of its result."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._count = 0

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node with one output."""
        self._count += 1
        output = f"{PREFIX}{self._count}"
        self._graph.node.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    def constant(self, values: object) -> str:
        """Adds weights, or numbers that an operator takes."""
        self._count += 1
        name = f"{PREFIX}{self._count}"
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def reshape(self, name: str, *shape: int) -> str:
        """Changes a shape; 0 keeps the size of that axis, -1 takes what is left."""
        return self.add("Reshape", name, self.constant(shape))

    def pool(self, pooling: str, states: str) -> str:
        """Reduces states [N, tokens, size] to vectors [N, size], float32."""
        states = self.add("Cast", states, to=TensorProto.FLOAT)
        if pooling == "cls":
            return self.add("Gather", states, self.constant(0), axis=1)
        column = self.reshape(self._mask(), 0, -1, 1)
        if pooling == "max":
            distance = self.add(
                "Mul", self.add("Sub", column, self.constant(np.float32(1))), self.constant(FAR)
            )
            columns = self.add("Transpose", self.add("Add", states, distance), perm=[0, 2, 1])
            return self.reshape(self.add("GlobalMaxPool", columns), 0, -1)
        if pooling == "lasttoken":
            column = self.add("Sub", column, self._next(column))
        ones = column
        if pooling == "weightedmean":  # later tokens count more
            column = self.add("Mul", column, self.add("CumSum", column, self.constant(1)))
        row = self.reshape(column, 0, 1, -1)
        vector = self.add("MatMul", row, states)  # [N, 1, size]
        if pooling != "lasttoken":
            count = self.add("Max", self.add("MatMul", row, ones), self.constant(LEAST))
            count = self.add("Sqrt", count) if pooling == "mean_sqrt_len_tokens" else count
            vector = self.add("Div", vector, count)
        return self.reshape(vector, 0, -1)

    def _mask(self) -> str:
        """Returns 1 for tokens and 0 for padding, float32 [N, tokens]; all are 1 without a mask."""
        if any(value.name == MASK for value in model_inputs(self._graph)):
            return self.add("Cast", MASK, to=TensorProto.FLOAT)
        zeros = self.add("Sub", IDS, IDS)
        return self.add("Exp", self.add("Cast", zeros, to=TensorProto.FLOAT))

    def _next(self, column: str) -> str:
        """Moves [N, tokens, 1] by one: each token gets the number of the next, and the last gets 0."""
        longer = self.add("Pad", column, self.constant([0, 0, 0, 0, 1, 0]))
        from_second, to_end, axis = ([1], [np.iinfo(np.int64).max], [1])
        return self.add("Slice", longer, *map(self.constant, (from_second, to_end, axis)))

    def linear(self, vector: str, folder: Path) -> str:
        """Adds a linear layer of sentence-transformers. Raises ConfigurationError."""
        path, dense = read_dense(folder)
        try:
            weights = {name: array.astype(np.float32) for name, array in load_file(path).items()}
            tensors = [weights["linear.weight"], *([weights["linear.bias"]] if dense.bias else [])]
        except (SafetensorError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{path} cannot be read as a linear layer: {error}") from error
        product = self.add("Gemm", vector, *map(self.constant, tensors), transB=1)
        return self.add(dense.activation_function.replace("ReLU", "Relu"), product)
