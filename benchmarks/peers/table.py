"""Shared work of the other servers of rows, which are sent in the Open Inference Protocol."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.common import session
from benchmarks.table_model import COLUMNS, INPUT, OUTPUT


class Tensor(msgspec.Struct):
    """An input of one row."""

    name: Literal["X"]
    datatype: Literal["FP32"]
    shape: Annotated[list[int], msgspec.Meta(min_length=2, max_length=2)]
    data: list[float]


class RowJson(msgspec.Struct):
    """A request."""

    inputs: Annotated[list[Tensor], msgspec.Meta(min_length=1, max_length=1)]


ROW_JSON = msgspec.json.Decoder(RowJson)


class ClassifyRows:
    """Model instance of one thread."""

    field = "inputs"

    def __init__(self, model_dir: str) -> None:
        """Loads the model."""
        self.session = session(Path(model_dir), "fp32")

    def body(self, body: bytes) -> dict[str, Any]:
        """Answers a request's JSON. Raises ValueError."""
        return self.tensor(ROW_JSON.decode(body).inputs[0])

    def text(self, inputs: Any) -> dict[str, Any]:
        """Answers the value of `inputs`, which the server has parsed. Raises ValueError."""
        return self.tensor(msgspec.convert({"inputs": inputs}, RowJson).inputs[0])

    def tensor(self, tensor: Any) -> dict[str, Any]:
        """Answers a tensor whose types have been checked. Raises ValueError for another shape."""
        if tensor.shape != [1, COLUMNS] or len(tensor.data) != COLUMNS:
            raise ValueError(f"{INPUT} must have the shape [1, {COLUMNS}]")
        numbers = self.infer(np.array([tensor.data], np.float32))
        shape, data = [*numbers.shape], numbers.ravel().tolist()
        return {"outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": shape, "data": data}]}

    def infer(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the probabilities [rows, classes]."""
        probabilities: NDArray[np.float32] = self.session.run((), {INPUT: rows})[0]
        return probabilities
