"""Tensors of TensorFlow Serving's gRPC API: every type in every form, and answers in the same form."""

import json
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from smallplates.engine.statistics import Timings
from smallplates.errors import InvalidRequestError
from smallplates.tasks.base import Field
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.columns import ColumnCall
from smallplates.web.api.datatypes import DATATYPES, DTYPES
from smallplates.web.dialects.tfserving_grpc import WIDTHS, decode, encode, tensor_of
from smallplates.web.dialects.v2 import codec
from smallplates.web.grpc.calls import serialise
from smallplates.web.grpc.generated import tf_serving_pb2 as pb
from smallplates.web.grpc.wire import PART_BYTES
from smallplates.web.inference.served_model import Answer
from tests.unit.web.api.entries import MOST, TEXTS, requests, tensors

NUMBERS = sorted(DTYPES)


def proto(datatype: str, shape: list[int], **values: Any) -> Any:
    dims = [{"size": size} for size in shape]
    return {"dtype": DATATYPES[datatype].tensorflow, "tensor_shape": {"dim": dims}, **values}


def decoded(entry: CatalogEntry, **inputs: Any) -> ColumnCall:
    request = pb.PredictRequest(inputs=inputs)
    return decode(request, [tensor_of(*each) for each in request.inputs.items()], entry, MOST)


def encoded(call: ColumnCall, candidates: Any = (), arrays: Any = ()) -> Any:
    """The answer as a client reads it; its bytes are protobuf's own."""
    data = b"".join(encode(call, Answer(Mock(), candidates, arrays, Mock(Timings))))
    response = pb.PredictResponse.FromString(data)
    assert serialise(response) == data
    return response


def array_of(entry: CatalogEntry, **inputs: Any) -> Any:
    call = decoded(entry, **inputs)
    assert call.tensors is not None
    return call.tensors[0]


@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_as_values_and_as_content_come_back_as_values(datatype: str) -> None:
    dtype = DTYPES[datatype]
    numbers = np.array([[0, 1], [1, 0], [1, 1]], dtype)
    if dtype.kind != "b":
        numbers[0, 0] = np.finfo(dtype).max if dtype.kind == "f" else np.iinfo(dtype).max
    entry = tensors(datatype, (2,))
    content = proto(datatype, [3, 2], tensor_content=numbers.tobytes())
    outputs = (ColumnSpec("o", datatype, (2,)),)
    call = decoded(replace(entry, outputs=outputs), i=content)
    returned = encoded(call, arrays=[numbers]).outputs["o"]
    (field,) = (each.name for each, _ in returned.ListFields() if each.name.endswith("_val"))
    assert [dim.size for dim in returned.tensor_shape.dim] == [3, 2]
    assert field in WIDTHS
    for sent in (content, returned):
        array = array_of(entry, i=sent)
        assert (array.dtype, array.tolist()) == (dtype, numbers.tolist())


@pytest.mark.parametrize(("values", "row"), [([7.0], [7.0] * 4), ([1.0, 2.0], [1.0, 2.0, 2.0, 2.0])])
def test_the_last_value_stands_for_those_that_follow(values: list[float], row: list[float]) -> None:
    array = array_of(tensors("FP32", (4,)), i=proto("FP32", [1, 4], float_val=values))
    assert array.tolist() == [row]
    call = decoded(TEXTS, TEXT=proto("BYTES", [3], string_val=[b"a", b"b"]))
    assert [one.read()["text"] for one in call.inputs] == ["a", "b", "b"]


def test_the_order_of_the_inputs_does_not_decide_what_a_batch_is() -> None:
    i, j = (tensors("FP32", dims) for dims in ((2,), (2, 1)))
    both = replace(i, inputs=(*i.inputs, replace(j.inputs[0], name="j")))
    sent = {"j": proto("FP32", [2, 1], float_val=[0]), "i": proto("FP32", [2], float_val=[0])}
    assert not decoded(both, **sent).is_batched
    inputs = [
        {"name": name, "datatype": "FP32", "shape": shape, "data": [0, 0]}
        for name, shape in (("j", [2, 1]), ("i", [2]))
    ]
    assert not codec.decode(json.dumps({"inputs": inputs}).encode(), None, both, MOST).is_batched


LISTS = replace(
    requests(
        ColumnSpec("QUERY", "BYTES", (1,), field=Field("query", "BYTES")),
        ColumnSpec("TEXTS", "BYTES", (-1,), (9,), Field("texts", "BYTES", is_list=True)),
    ),
    outputs=(
        ColumnSpec("SCORES", "FP32", (-1,), (9,), Field("scores", "FP32", is_list=True)),
        ColumnSpec("BEST", "BYTES", (1,), field=Field("best", "BYTES")),
    ),
)


@pytest.mark.parametrize(("queries", "shape"), [([b"q"], [2]), ([b"q"], [1, 2]), ([b"q", b"r"], [2, 2])])
def test_lists_of_texts_in_and_of_numbers_out(queries: list[bytes], shape: list[int]) -> None:
    count = len(queries)
    call = decoded(
        LISTS,
        QUERY=proto("BYTES", [count], string_val=queries),
        TEXTS=proto("BYTES", shape, string_val=[b"a", b"b", b"c", b"d"][: 2 * count]),
    )
    fields = [one.read() for one in call.inputs]
    assert [each["texts"] for each in fields] == [["a", "b"], ["c", "d"]][:count]
    candidates: Any = [[{"scores": [0.5, 0.25], "best": "a"}]] * count
    outputs = encoded(call, candidates).outputs
    assert [dim.size for dim in outputs["SCORES"].tensor_shape.dim] == [count, 2]
    assert [*outputs["SCORES"].float_val] == [0.5, 0.25] * count
    assert [dim.size for dim in outputs["BEST"].tensor_shape.dim] == [count]


def test_a_few_bytes_do_not_stand_for_millions_of_texts() -> None:
    sent = {"QUERY": proto("BYTES", [1], string_val=[b"q"])}
    for shape in ([2_000_000], [1, 2_000_000]):
        with pytest.raises(InvalidRequestError, match="up to 16384 elements"):
            decoded(LISTS, **sent, TEXTS=proto("BYTES", shape, string_val=[b""]))
    call = decoded(LISTS, **sent, TEXTS=proto("BYTES", [16_384], string_val=[b""]))
    assert len(call.inputs[0].read()["texts"]) == 16_384


def test_needless_values_make_no_other_tensor_smaller() -> None:
    for count in (0, 1, 1000):
        needless = pb.TensorProto(**proto("BYTES", [count], string_val=[b"x"] * 1000))
        assert tensor_of("i", needless).size == 0


@pytest.mark.parametrize(
    ("datatype", "field", "value"),
    [
        ("INT8", "int_val", 128),
        ("UINT8", "int_val", -1),
        ("UINT16", "int_val", 2**16),
        ("FP16", "half_val", -1),
        ("FP16", "half_val", 2**16),
    ],
)
def test_numbers_outside_of_their_type_are_refused(datatype: str, field: str, value: int) -> None:
    with pytest.raises(InvalidRequestError, match="outside the range"):
        decoded(tensors(datatype, (2,)), i=proto(datatype, [1, 2], **{field: [value]}))


def test_many_numbers_are_taken_and_returned_in_parts() -> None:
    numbers = np.arange(PART_BYTES // 4 + 7, dtype=np.float32)[None]
    entry = tensors("FP32", numbers.shape[1:])
    outputs = (ColumnSpec("o", "FP32", numbers.shape[1:]),)
    content = proto("FP32", [*numbers.shape], float_val=numbers[0].tolist())
    call = decoded(replace(entry, outputs=outputs), i=content)
    assert call.tensors is not None
    assert np.array_equal(call.tensors[0], numbers)
    assert np.array_equal(encoded(call, arrays=[numbers]).outputs["o"].float_val, numbers[0])
