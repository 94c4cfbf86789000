"""Bounds the fields of a gRPC message before protobuf builds it, where two bytes can become a hundred.

What `check_size` in `v2_tensors.py` is for JSON. Only lengths are read here: tensors are skipped.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from serving.errors import InvalidRequestError

MAX_FIELDS = 16 * 1024  # a request has one for each photo, and a few more
VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)  # protobuf's wire types
FIXED = {FIXED64: 8, FIXED32: 4, GROUP: 0, GROUP_END: 0}
MAX_VARINT_BYTES = 10
WHOLE_NUMBERS = {  # packed, one by one in a byte or more; of a shape, for one
    FieldDescriptor.CPPTYPE_BOOL,
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
}
Descriptor = Any  # protobuf's, which has no types


def check_fields(data: bytes, kind: Descriptor) -> None:
    """Those of a message of this kind and of all messages in it. Raises InvalidRequestError."""
    left = [(memoryview(data), kind)]
    count = 0
    while left:
        part, kind = left.pop()
        for number, content in fields(part):
            known = kind.fields_by_number.get(number)
            whole = known is not None and known.cpp_type in WHOLE_NUMBERS
            count += len(content) if whole and content is not None else 1
            if count > MAX_FIELDS:
                raise InvalidRequestError(f"the message has more than {MAX_FIELDS} fields")
            if content is not None and known is not None and known.message_type is not None:
                left.append((content, known.message_type))


def fields(data: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """The number of each field, and its bytes where it has a length. Raises InvalidRequestError."""
    place = 0
    while place < len(data):
        tag, place = varint(data, place)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            _, place = varint(data, place)
            yield number, None
        elif wire == BYTES:
            size, place = varint(data, place)
            yield number, data[place : place + size]
            place += size
        elif wire in FIXED:
            place += FIXED[wire]
            yield number, None
        else:
            raise InvalidRequestError("the message cannot be read")


def varint(data: memoryview, place: int) -> tuple[int, int]:
    """A number of up to 64 bits, and where it ends. Raises InvalidRequestError."""
    value = 0
    for shift, byte in enumerate(data[place : place + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, place + shift + 1
    raise InvalidRequestError("the message cannot be read")
