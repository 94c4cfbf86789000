"""Check that the items of a graph's batch do not depend on each other, on made-up items.

A graph that normalises over its first axis answers an item otherwise among others than alone, and only a
request of all its items at once is answered as the graph would. Called by `backend.py` where a graph is
described, in a process of its own.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf

import onnx
import onnxruntime as ort
from onnx import TensorProto

from fastapi_onnx.batch_axis import MAY_DEPEND
from fastapi_onnx.network import Network, graph_path, served_graph
from fastapi_onnx.sessions import OnnxRuntimeSession
from fastapi_onnx.shared_weights import CPU
from fastapi_onnx.signature import graph_signature
from smallplates.models.comparison import difference, relative
from smallplates.models.folder import Model
from smallplates.models.tensors import (
    NOT_COMPARED,
    Array,
    Signature,
    TensorSpec,
    axes_of,
    check_outputs,
)
from smallplates.system import cpus
from smallplates.worker.batch_sizes import LARGEST
from smallplates.worker.independence import ITEMS, Infer, difference_alone, with_checked_texts
from smallplates.worker.precision_check import EXACT, MAX_DIFFERENCE, random_inputs

Run = Callable[[Signature, Sequence[Array]], Sequence[Array]]
"""Computes a batch, as `Network.infer` does."""

QUANTISED = 0.1
"""Largest difference in a graph that computes scales of int8 from its input: of the whole batch."""

FAILS, DIFFER = "the graph fails on generated items", "the outputs differ from call to call"
SIZES = (ITEMS, *(2**power for power in range(3, LARGEST.bit_length())))
"""Sizes of the batches that are compared: some graphs compute large batches in another way."""

NEXT_S = 0.1
"""CPU time in seconds after which no size above 8 is compared."""


def with_compared_items(model: Model, signature: Signature) -> Iterator[Signature]:
    """Yields a signature without a batch axis if items depend on each other, or one with a note.

    For texts, see `with_checked_texts`. Other quantised graphs are left out. Raises ConfigurationError
    for a graph that cannot be served without the batch axis.
    """
    path, is_text = graph_path(model), model.description.text is not None
    largest = cache(lambda: tolerance(onnx.load(path, load_external_data=False).graph, signature))
    is_one = signature.batch_size == 1 and not signature.batch_note
    depends = signature.is_batched and (is_text or not (is_one or largest() == QUANTISED))
    if not depends and (is_text or not signature.input_axes):
        return
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # opens sooner
    options.intra_op_num_threads = cpus.usable()
    options.log_severity_level = 4  # a refused input is not the service's error
    try:
        graph = served_graph(model, path)
        session = OnnxRuntimeSession(ort.InferenceSession(graph, options, providers=[CPU]))
        run = Network(model, session, signature=signature).infer
        if is_text:
            yield from with_checked_texts(model, partial(run, signature), signature, largest)
            return
    except Exception:  # the runtime's, which has a type per cause
        yield from note_failure(signature, FAILS)
        return
    read = partial(graph_signature, path, model, varying=varying_sizes(signature, run))
    if read.keywords["varying"]:
        signature = read()
        yield signature
    if depends and signature.is_batched:
        signature = with_returned_rows(signature, run) or signature
        most = max(largest(), MAX_DIFFERENCE)  # rounding; what mixes items is found in the graph
        yield from compare_sizes(read, signature, partial(run, signature), most)


def varying_sizes(signature: Signature, run: Run) -> dict[str, set[int]]:
    """Returns, by output, the axes whose sizes are not as declared, by their place from the end.

    A traced graph may declare the sizes that its example had, although those of its inputs vary.
    """
    for length in signature.example_lengths if signature.input_axes else ():
        with contextlib.suppress(Exception):  # the runtime's: the network does not take this length
            outputs = run(signature, random_inputs(signature, signature.batch_size or 1, length))
            return {
                spec.name: places
                for spec, array in zip(signature.outputs, outputs, strict=True)
                if (places := set(other_sizes(spec, array, signature.batch_size)))
            }
    return {}


def other_sizes(spec: TensorSpec, array: Array, batch_size: int) -> Iterator[int]:
    """Yields the places, from the end, of an output's axes that are not as declared."""
    if array.ndim == len(spec.shape) + 1:
        declared = (batch_size or len(array), *spec.shape)
        for place, (size, axis) in enumerate(zip(array.shape, declared, strict=True), -array.ndim):
            if isinstance(axis, int) and size != axis:
                yield place


def with_returned_rows(signature: Signature, run: Run) -> Signature | None:
    """Returns the signature for batches if each output has a row for each item, whatever it declares.

    A traced graph may declare one row, that of its example, for a batch of any size; LightGBM's labels
    are another case. It is None if the outputs declare their rows, or if some output has none.
    """
    note = signature.batch_note
    if signature.batch_size != 1 or not note or MAY_DEPEND in note:
        return None
    for length in signature.example_lengths:
        sizes = signature.sizes_at(length)
        if not sizes.keys() >= {*axes_of(signature.outputs)}:
            return None
        with contextlib.suppress(Exception):  # the runtime's: the network does not take this length
            together = run(signature, random_inputs(signature, ITEMS, length))
            break
    else:
        return None
    outputs = []
    for spec, array in zip(signature.outputs, together, strict=True):
        if array.shape[:2] == (1, ITEMS) and spec.shape[:1] == (1,):
            spec, array = replace(spec, shape=spec.shape[1:]), array[0]
        if array.shape != (ITEMS, *spec.shape_at(sizes)):
            return None
        outputs.append(spec)
    return replace(signature, outputs=tuple(outputs), batch_size=0, batch_note="")


def compare_sizes(
    read: Callable[[str], Signature], signature: Signature, infer: Infer, largest: float
) -> Iterator[Signature]:
    """Compares batches of more and more items; yields what `with_compared_items` does.

    `read` returns the signature without a batch axis, given the reason. The signature itself stands for
    what larger batches, which may take too long, do not change.
    """
    for size in SIZES[:1] if signature.batch_size > 1 else SIZES:
        start = time.process_time()  # whatever else runs on this machine
        try:
            alone, again = differences(signature, infer, size)
            returned = with_returned_shapes(signature, infer) if alone == inf else None
        except Exception:  # the runtime's
            yield from note_failure(signature, FAILS) if size == ITEMS else ()
            return
        if returned:
            yield from compare_sizes(read, returned, infer, largest)
            return
        if again > largest:
            yield from note_failure(signature, DIFFER) if size == ITEMS else ()
            return
        if alone > largest:
            note = (
                f"items depend on each other: in a batch, results differ by {alone:.2g} (relative); "
                "one request may have several items"
            )
            yield read(note)
            return
        yield signature
        if size > ITEMS and time.process_time() - start > NEXT_S:
            return


def note_failure(signature: Signature, reason: str) -> Iterator[Signature]:
    """Yields the signature with a note; nothing if batches of one are computed anyway."""
    if signature.batch_size != 1:
        yield replace(signature, batch_note=f"{NOT_COMPARED}: {reason}")


def with_returned_shapes(signature: Signature, infer: Infer) -> Signature | None:
    """Returns the signature with the outputs' shapes that the runtime returns for a batch.

    It is None if these have no row for each item, are those of the signature, or vary. CatBoost, for
    example, declares [N] and returns [N, 1]. Raises the runtime's errors.
    """
    together = infer(random_inputs(signature, ITEMS, 1))
    if signature.axes or signature.batch_size or any(array.shape[:1] != (ITEMS,) for array in together):
        return None
    pairs = zip(signature.outputs, together, strict=True)
    outputs = tuple(replace(spec, shape=array.shape[1:]) for spec, array in pairs)
    return None if outputs == signature.outputs else replace(signature, outputs=outputs)


def tolerance(graph: onnx.GraphProto, signature: Signature) -> float:
    """Returns the largest difference that the graph's precision explains."""
    if any("Quantize" in node.op_type for node in graph.node):
        return QUANTISED
    has_half = any(weights.data_type == TensorProto.FLOAT16 for weights in graph.initializer)
    has_half |= any(spec.dtype == "float16" for spec in (*signature.inputs, *signature.outputs))
    return MAX_DIFFERENCE if has_half else EXACT


def differences(signature: Signature, infer: Infer, size: int) -> tuple[float, float]:
    """Returns how far items computed alone, and once more together, are from the same ones together.

    Only the first items are computed alone. An item that the graph computes only among others is
    infinitely far. See `comparison.relative`. Raises the runtime's errors.
    """
    is_one = signature.batch_size == 1
    size = size if is_one else signature.batch_size or size
    for length in signature.example_lengths:
        inputs = random_inputs(signature, size, length)
        try:
            together = infer(inputs)
            break
        except Exception:  # the runtime's: the network does not take this length
            if length == signature.example_lengths[-1]:
                raise
    again = difference(together, infer(inputs), relative).worst
    sizes, count, alone = signature.sizes_at(length), min(size, ITEMS), inf
    with contextlib.suppress(Exception):  # the batch does not divide into items, or the runtime's
        if is_one:
            alone = difference_whole(signature, infer, inputs, together, sizes)
        else:
            check_outputs(signature, together, size, sizes)
            alone = difference_alone(infer, inputs, [None] * count, signature.batch_size)
    return alone, again


def difference_whole(
    signature: Signature,
    infer: Infer,
    inputs: Sequence[Array],
    together: Sequence[Array],
    sizes: Mapping[str, int],
) -> float:
    """Returns how far outputs without a batch axis are, for items together, from each item's alone.

    Those whose size depends on the data are left out. Raises the runtime's errors.
    """
    places = [
        place
        for place, (spec, array) in enumerate(zip(signature.outputs, together, strict=True))
        if sizes.keys() >= {*axes_of([spec])} and array.shape == (1, *spec.shape_at(sizes))
    ]
    whole, worst = [together[place] for place in places], 0.0
    for row in range(min(ITEMS, len(inputs[0])) if places else 0):
        alone = infer([array[row : row + 1] for array in inputs])
        worst = max(worst, difference([alone[place] for place in places], whole, relative).worst)
    return worst
