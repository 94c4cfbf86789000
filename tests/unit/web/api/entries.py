"""Models as clients see them: a photo, tensors with and without a batch dimension, and texts."""

from dataclasses import replace
from unittest.mock import Mock

from smallplates.tasks.base import Field
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec

IMAGE = Field("image", "BYTES", is_bytes=True, is_image=True)
OUTPUTS = (ColumnSpec("o", "FP32", (1,)),)
MOST = 4  # inputs in a request


def requests(*inputs: ColumnSpec) -> CatalogEntry:
    """A model of requests with these inputs."""
    return CatalogEntry("model", "1", False, 0, inputs, OUTPUTS, Mock())


def tensors(datatype: str, dims: tuple[int, ...], limits: tuple[int, ...] = ()) -> CatalogEntry:
    """A model of tensors with one input `i`."""
    inputs = (ColumnSpec("i", datatype, dims, limits),)
    return CatalogEntry("model", "1", True, 1, inputs, OUTPUTS, Mock())


PHOTO = requests(ColumnSpec("i", "BYTES", (1,), field=IMAGE))
ARRAY = tensors("FP32", (3, 2, 2))
UNBATCHED = replace(ARRAY, is_batched=False)
TEXTS = requests(
    ColumnSpec("TEXT", "BYTES", (1,), field=Field("text", "BYTES")),
    ColumnSpec("PAIR", "BYTES", (1,), field=Field("pair", "BYTES", required=False)),
)
ENTRIES = {"photo": PHOTO, "tensor": ARRAY, "unbatched": UNBATCHED, "texts": TEXTS}
