"""The data types of tensors, with their names in NumPy and in every protocol."""

from typing import Any, NamedTuple

import numpy as np


class DataType(NamedTuple):
    """Type of a tensor's elements."""

    name: str  # in the Open Inference Protocol
    dtype: "np.dtype[Any] | None"  # NumPy type, little-endian; None for BYTES
    contents: str | None  # field in gRPC's typed contents; None if the type has raw contents only
    tensorflow: str  # its name in TensorFlow Serving


BYTES = "BYTES"
DATATYPES = {
    datatype.name: datatype
    for datatype in (
        DataType(BYTES, None, "bytes_contents", "DT_STRING"),
        DataType("BOOL", np.dtype("?"), "bool_contents", "DT_BOOL"),
        DataType("UINT8", np.dtype("u1"), "uint_contents", "DT_UINT8"),
        DataType("UINT16", np.dtype("<u2"), "uint_contents", "DT_UINT16"),
        DataType("UINT32", np.dtype("<u4"), "uint_contents", "DT_UINT32"),
        DataType("UINT64", np.dtype("<u8"), "uint64_contents", "DT_UINT64"),
        DataType("INT8", np.dtype("i1"), "int_contents", "DT_INT8"),
        DataType("INT16", np.dtype("<i2"), "int_contents", "DT_INT16"),
        DataType("INT32", np.dtype("<i4"), "int_contents", "DT_INT32"),
        DataType("INT64", np.dtype("<i8"), "int64_contents", "DT_INT64"),
        DataType("FP16", np.dtype("<f2"), None, "DT_HALF"),
        DataType("FP32", np.dtype("<f4"), "fp32_contents", "DT_FLOAT"),
        DataType("FP64", np.dtype("<f8"), "fp64_contents", "DT_DOUBLE"),
    )
}
DTYPES = {datatype.name: datatype.dtype for datatype in DATATYPES.values() if datatype.dtype is not None}
NAMES = {dtype.name: name for name, dtype in DTYPES.items()}
"""Name in NumPy -> name in the Open Inference Protocol."""


def fits(sent: str, expected: str) -> bool:
    """Returns whether a type is the expected one, or a smaller one of its kind: no value changes."""
    small, large = DTYPES.get(sent), DTYPES.get(expected)
    if small is None or large is None:
        return sent == expected
    return small.kind == large.kind and small.itemsize <= large.itemsize
