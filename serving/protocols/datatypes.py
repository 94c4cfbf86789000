"""The data types of tensors, with their names in NumPy and in every protocol."""

from typing import Any, NamedTuple

import numpy as np


class DataType(NamedTuple):
    """Type of a tensor's elements."""

    name: str
    """Name in the Open Inference Protocol."""

    dtype: "np.dtype[Any] | None"
    """NumPy type, little-endian; None for BYTES."""

    contents: str | None
    """Field in gRPC's typed contents; None if the type has raw contents only."""

    tensorflow: str
    """Name in TensorFlow Serving."""


def whole_numbers(kind: str, prefix: str) -> list[DataType]:
    """Returns the types of the four sizes of signed or unsigned integers."""
    return [
        DataType(
            f"{kind}{8 * size}",
            np.dtype(f"<{prefix}{size}"),
            f"{kind.lower()}{64 if size == 8 else ''}_contents",
            f"DT_{kind}{8 * size}",
        )
        for size in (1, 2, 4, 8)
    ]


BYTES = "BYTES"
DATATYPES = {
    datatype.name: datatype
    for datatype in (
        DataType(BYTES, None, "bytes_contents", "DT_STRING"),
        DataType("BOOL", np.dtype("?"), "bool_contents", "DT_BOOL"),
        *whole_numbers("UINT", "u"),
        *whole_numbers("INT", "i"),
        DataType("FP16", np.dtype("<f2"), None, "DT_HALF"),
        DataType("FP32", np.dtype("<f4"), "fp32_contents", "DT_FLOAT"),
        DataType("FP64", np.dtype("<f8"), "fp64_contents", "DT_DOUBLE"),
    )
}
DTYPES = {datatype.name: datatype.dtype for datatype in DATATYPES.values() if datatype.dtype is not None}
NAMES = {dtype.name: name for name, dtype in DTYPES.items()}
"""Name in NumPy -> name in the Open Inference Protocol."""
