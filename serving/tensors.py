"""Tensors that the engine moves: their names, types and sizes. It knows nothing else of a model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidTensorError

Array = NDArray[Any]
Item = Sequence[Array]
"""One input of a request: an array per input tensor, in the signature's order, without a batch axis."""

NOT_COMPARED = "it is unknown whether its items depend on each other"
EXAMPLE_LENGTHS = (16, 64, 256)
"""Sizes of varying axes with which networks are tried and measured at load, within their limits."""


@dataclass(frozen=True)
class TensorSpec:
    """Tensor of one item, without the batch axis."""

    name: str
    dtype: str
    """NumPy's name of the element type, such as `float32`."""

    shape: tuple[int | str, ...]
    """Sizes; a name in place of a size is an axis that varies from item to item."""

    padding: int = 0
    """Value behind the shorter items of a batch."""

    example: int = 0
    """Value of all elements at warm-up."""

    note: str = ""
    """What the shape follows from, for messages about another shape."""

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the shape of an item whose varying axes have these sizes."""
        return tuple(sizes[size] if isinstance(size, str) else size for size in self.shape)

    @cached_property
    def varies(self) -> bool:
        """Whether any axis varies."""
        return any(isinstance(size, str) for size in self.shape)


@dataclass(frozen=True)
class Signature:
    """One way to call a network: what goes in, what comes out. Items of one signature share batches."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    limits: dict[str, int] = field(default_factory=dict)
    """Largest size of each axis that varies."""

    pads: bool = False
    """Whether items of several sizes share a batch, padded to the largest; else only equal ones do."""

    batch_elements: int = 0
    """Most elements of a padded batch, in its largest input; 0: warm-up measures how many pay."""

    batch_size: int = 0
    """The only batch size that the network computes; smaller batches are filled up. 0: any size."""

    is_batched: bool = True
    """Whether the network's tensors begin with the batch axis; else its shapes are those of the one item
    that it computes at a time. The engine's arrays always begin with it."""

    batch_note: str = ""
    """Why there is no batch dimension, or why items were not compared; empty if neither applies."""

    normalises: bool = False
    """Whether the input is an image, uint8 [height, width, 3], that the backend normalises first."""

    checks_finite: bool = False
    """Whether an output that is not finite is a failure of the server."""

    failure_is_client_error: bool = False
    """Whether an item that fails alone is the client's fault: its numbers in a graph of any kind."""

    @cached_property
    def input_axes(self) -> tuple[str, ...]:
        """Axes of the inputs that vary; an item's inputs agree on their sizes."""
        return axes_of(self.inputs)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Axes that vary: those of the inputs, then those that only outputs have."""
        return axes_of((*self.inputs, *self.outputs))

    def sizes_at(self, length: int) -> dict[str, int]:
        """Returns the sizes of an item whose varying axes are as long, within their limits."""
        return {axis: min(length, self.limits[axis]) for axis in self.input_axes}

    def sizes(self, item: Item) -> dict[str, int]:
        """Returns the size of each axis of the inputs that varies."""
        return {
            axis: size
            for spec, array in zip(self.inputs, item, strict=True)
            for axis, size in zip(spec.shape, array.shape, strict=True)
            if isinstance(axis, str)
        }

    def elements(self, sizes: Mapping[str, int]) -> int:
        """Returns the elements of the largest varying input; the cost of an item grows with them."""
        return max((math.prod(spec.sized(sizes)) for spec in self.inputs if spec.varies), default=1)

    def items(self, batch: Sequence[Array]) -> list[Item]:
        """Splits an array [N, *shape] per input into N items.

        Raises InvalidTensorError for another type or shape, or for a size out of bounds.
        """
        sizes: dict[str, int] = {}
        for spec, array in zip(self.inputs, batch, strict=True):
            if array.dtype != spec.dtype:
                raise InvalidTensorError(f"{spec.name} must be of type {spec.dtype}, not {array.dtype}")
            if array.shape[:1] != batch[0].shape[:1]:
                raise InvalidTensorError(
                    f"{spec.name} has a different number of rows from the first input"
                )
            if not array.ndim:
                raise InvalidTensorError(f"{spec.name} needs a batch dimension")
            self.check_shape(spec, array.shape[1:], sizes)
        return list(zip(*batch, strict=True))

    def check_shape(self, spec: TensorSpec, shape: Sequence[int], sizes: dict[str, int]) -> None:
        """Checks an item's shape; adds the sizes of varying axes to `sizes`, or compares them with it.

        Raises InvalidTensorError.
        """
        if len(shape) != len(spec.shape):
            raise InvalidTensorError(
                f"each item of {spec.name} must have the shape {spec.shape}, not {tuple(shape)}"
            )
        for size, wanted in zip(shape, spec.shape, strict=True):
            if isinstance(wanted, str):
                if not 1 <= size <= self.limits[wanted]:
                    raise InvalidTensorError(
                        f"{spec.name} has the size {size} along {wanted}; "
                        f"1 to {self.limits[wanted]} are accepted"
                    )
                wanted = sizes.setdefault(wanted, size)
            if size != wanted:
                raise InvalidTensorError(
                    f"each item of {spec.name} must have the shape {spec.sized(self.limits | sizes)}, "
                    f"not {tuple(shape)}"
                )


def axes_of(specs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Returns the axes that vary, each once, in the order of their first use."""
    return tuple(dict.fromkeys(size for spec in specs for size in spec.shape if isinstance(size, str)))


def examples(signature: Signature, count: int, sizes: Mapping[str, int]) -> list[Array]:
    """Returns a batch for warm-up, an array [count, *shape] per input."""
    return [np.full((count, *spec.sized(sizes)), spec.example, spec.dtype) for spec in signature.inputs]


def check_outputs(
    signature: Signature, outputs: Sequence[Array], size: int, sizes: Mapping[str, int]
) -> None:
    """Raises ValueError unless the outputs of a batch of `size` are as the signature says.

    `sizes` are those of the inputs' axes that vary.
    """
    if len(outputs) != len(signature.outputs):
        raise ValueError(
            f"the model returned {len(outputs)} outputs instead of {len(signature.outputs)}"
        )
    known = dict(sizes)
    for spec, array in zip(signature.outputs, outputs, strict=True):
        if array.shape == (size, *spec.shape) and array.dtype == spec.dtype:
            continue
        for axis, axis_size in zip(spec.shape, array.shape[1:], strict=False):
            if isinstance(axis, str) and axis_size <= signature.limits.get(axis, axis_size):
                known.setdefault(axis, axis_size)
        unknown = dict.fromkeys(axes_of([spec]), -1)  # in no shape
        if array.shape != (size, *spec.sized(unknown | known)) or array.dtype != spec.dtype:
            note = f": {spec.note}" if spec.note else ""
            raise ValueError(
                f"the model returned {spec.name} as {array.dtype} {list(array.shape)}, "
                f"not as {spec.dtype} {[size, *spec.shape]}{note}"
            )
