"""Names, types and sizes of tensors: all that the engine knows about a model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smallplates.errors import InvalidTensorError

Array = NDArray[Any]
Item = Sequence[Array]
"""What the engine computes: an array [*shape] per input tensor, in the signature's order."""

NOT_COMPARED = "it is unknown whether its items depend on each other"
EXAMPLE_LENGTHS = (16, 64, 256)
"""Sizes of varying axes, within their limits, with which networks are tried and measured at load."""

MAX_EXAMPLE = 2**22
"""Most elements of an item that is longer than these, for memory: a batch is made up in float64."""


@dataclass(frozen=True)
class TensorSpec:
    """Tensor of one item, without the batch dimension."""

    name: str
    dtype: str
    """NumPy's name for the element type, such as `float32`."""

    shape: tuple[int | str, ...]
    """Sizes; a name instead of a size means that the axis varies between items."""

    padding: int = 0
    """Value that fills up the shorter items of a batch."""

    example: int = 0
    """Value of all elements during warm-up."""

    ending: tuple[int, ...] = ()
    """Values at the end of the last axis during warm-up, as far as there is room."""

    equal_count: int | None = None
    """Value that all items of a batch must have equally often; None if that doesn't matter."""

    most: int = 0
    """Maximum number of elements; 0 means that only its axes are limited."""

    note: str = ""
    """Where the shape or its limits come from, for error messages about a wrong shape."""

    def shape_at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the shape of an item with these sizes of varying axes."""
        return tuple(sizes[size] if isinstance(size, str) else size for size in self.shape)

    def largest(self, limits: Mapping[str, int]) -> int:
        """Returns the maximum number of elements, given the limits of varying axes."""
        elements = math.prod(self.shape_at(limits))
        return min(elements, self.most or elements)

    @cached_property
    def varies(self) -> bool:
        """Whether any axis varies."""
        return any(isinstance(size, str) for size in self.shape)


@dataclass(frozen=True)
class Signature:
    """One way to call a network: its inputs and outputs. Items of the same signature share batches."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    limits: dict[str, int] = field(default_factory=dict)
    """Maximum size of each varying axis."""

    pads: bool = False
    """Whether items of different sizes may share a batch, padded to the largest item."""

    batch_elements: int = 0
    """Maximum elements of a batch, in its largest input, if padding costs nothing; 0 means that warm-up
    measures it."""

    batch_size: int = 0
    """The network's fixed batch size, to which smaller batches are filled up; 0 means any size."""

    is_batched: bool = True
    """Whether the network's tensors begin with a batch dimension; otherwise it computes one item at a
    time. The engine's arrays always begin with a batch dimension."""

    batch_note: str = ""
    """Why there is no batch dimension, or why items were not compared; empty if neither applies."""

    normalises: bool = False
    """Whether the input is an image, uint8 [height, width, 3], that the backend normalises."""

    checks_finite: bool = False
    """Whether outputs that are not finite count as a failure of the server."""

    failure_is_client_error: bool = False
    """Whether an item that fails alone is the client's fault, as for a client's tensors in any graph,
    or for a text of a length that the graph refuses."""

    @cached_property
    def input_axes(self) -> tuple[str, ...]:
        """Varying axes of the inputs; axes of the same name have the same size within an item."""
        return axes_of(self.inputs)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Varying axes: those of the inputs, then those that only outputs have."""
        return axes_of((*self.inputs, *self.outputs))

    def sizes_at(self, length: int) -> dict[str, int]:
        """Returns the sizes of an item whose varying axes are `length` long, within their limits."""
        return {axis: min(length, self.limits[axis]) for axis in self.input_axes}

    @cached_property
    def example_lengths(self) -> tuple[int, ...]:
        """Lengths to try until the network computes one: EXAMPLE_LENGTHS, and last the largest limit.

        The latter is left out if several axes would make an item of more than MAX_EXAMPLE elements.
        """
        most = max((self.limits[axis] for axis in self.input_axes), default=EXAMPLE_LENGTHS[0])
        if most > EXAMPLE_LENGTHS[-1] and self.elements(self.sizes_at(most)) > MAX_EXAMPLE:
            return EXAMPLE_LENGTHS
        return (*(length for length in EXAMPLE_LENGTHS if length < most), most)

    def sizes(self, item: Item) -> dict[str, int]:
        """Returns the size of each varying axis of an item's inputs."""
        return {
            axis: size
            for spec, array in zip(self.inputs, item, strict=True)
            for axis, size in zip(spec.shape, array.shape, strict=True)
            if isinstance(axis, str)
        }

    def elements(self, sizes: Mapping[str, int]) -> int:
        """Returns the number of elements in the largest varying input; an item's cost grows with it."""
        return max((math.prod(spec.shape_at(sizes)) for spec in self.inputs if spec.varies), default=1)

    def elements_of(self, item: Item) -> int:
        """Returns the same for an item."""
        pairs = zip(self.inputs, item, strict=True)
        return max((array.size for spec, array in pairs if spec.varies), default=1)

    def items(self, batch: Sequence[Array]) -> list[Item]:
        """Splits a batch, an array [N, *shape] per input, into N items.

        Raises InvalidTensorError for a wrong type or shape, or for a size out of range.
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
        """Checks an item's shape; adds the sizes of varying axes to `sizes`, or compares them to it.

        Raises InvalidTensorError.
        """
        if len(shape) != len(spec.shape):
            raise InvalidTensorError(
                f"each item of {spec.name} must have the shape {spec.shape}, not {tuple(shape)}"
            )
        for size, axis in zip(shape, spec.shape, strict=True):
            if isinstance(axis, str):
                most = self.limits[axis]
                if not 1 <= size <= most:
                    note = f" ({spec.note})" if spec.note and size > most else ""
                    raise InvalidTensorError(
                        f"{spec.name} has the size {size} along {axis}; 1 to {most} are accepted{note}"
                    )
                axis = sizes.setdefault(axis, size)
            if size != axis:
                raise InvalidTensorError(
                    f"each item of {spec.name} must have the shape "
                    f"{spec.shape_at(self.limits | sizes)}, not {tuple(shape)}"
                )


def axes_of(specs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Returns the varying axes, each once, in the order of their first use."""
    return tuple(dict.fromkeys(size for spec in specs for size in spec.shape if isinstance(size, str)))


def examples(signature: Signature, count: int, sizes: Mapping[str, int]) -> list[Array]:
    """Returns a batch of examples for warm-up, an array [count, *shape] per input."""
    batch = [
        np.full((count, *spec.shape_at(sizes)), spec.example, spec.dtype) for spec in signature.inputs
    ]
    for spec, array in zip(signature.inputs, batch, strict=True):
        put_at_end(array, spec.ending)
    return batch


def put_at_end(array: Array, values: Sequence[int]) -> None:
    """Writes the values, or as many of the last ones as there is room for, at the last axis' end."""
    if values:
        ending = values[-array.shape[-1] :]
        array[..., -len(ending) :] = ending


def check_outputs(
    signature: Signature, outputs: Sequence[Array], size: int, sizes: Mapping[str, int]
) -> None:
    """Raises ValueError unless the outputs of a batch of `size` items match the signature.

    `sizes` has the sizes of the inputs' varying axes.
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
        unknown = dict.fromkeys(axes_of([spec]), -1)  # matches no size
        if array.shape != (size, *spec.shape_at(unknown | known)) or array.dtype != spec.dtype:
            note = f": {spec.note}" if spec.note else ""
            if array.ndim != 1 + len(spec.shape):
                note = "; the file declares another number of axes: correct the output's shape in it"
            raise ValueError(
                f"the model returned {spec.name} as {array.dtype} {list(array.shape)}, "
                f"not as {spec.dtype} {[size, *spec.shape]}{note}"
            )
        if spec.most and array.size > size * spec.most:
            raise ValueError(
                f"the model returned {spec.name} with {array.size // size} numbers; "
                f"at most {spec.most} are accepted"
            )
