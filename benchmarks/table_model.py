"""A table's model, as scikit-learn's exports are: a scaler and a logistic regression, in a microsecond.

With it, `compare --task table` measures what a request costs beside its computation.
"""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FILE = Path("runs/table-model/table.onnx")
INPUT, OUTPUT = "X", "probabilities"
COLUMNS, CLASSES = 4, 3


def ensure(path: Path = FILE) -> Path:
    """Returns the path of the graph, which it makes if it is missing."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(made(), path)
    return path


def made() -> onnx.ModelProto:
    """Returns the graph: [N, columns] -> [N, classes]."""
    chance = np.random.default_rng(5)
    weights = {
        "mean": chance.normal(size=COLUMNS),
        "scale": chance.uniform(0.5, 2, COLUMNS),
        "coefficients": chance.normal(size=(COLUMNS, CLASSES)),
        "intercept": chance.normal(size=CLASSES),
    }
    nodes = [
        helper.make_node("Sub", [INPUT, "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "scale"], ["scaled"]),
        helper.make_node("Gemm", ["scaled", "coefficients", "intercept"], ["logits"]),
        helper.make_node("Softmax", ["logits"], [OUTPUT]),
    ]
    graph = helper.make_graph(
        nodes,
        "table",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["N", COLUMNS])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(each.astype(np.float32), name) for name, each in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def rows(count: int) -> list[str]:
    """Returns rows as JSON."""
    numbers = np.random.default_rng(7).normal(size=(count, COLUMNS)).round(3)
    return [json.dumps(row.tolist()) for row in numbers]
