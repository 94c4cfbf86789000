"""Inference of the Open Inference Protocol, the same for HTTP and gRPC.

Their codecs translate a request into an InferRequest, and the InferResponse back.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.engine.statistics import Timings
from serving.errors import InvalidRequestError
from serving.inference.active_model import EncodedImage, Logits
from serving.inference.service import InferenceService
from serving.protocols.admission import RequestOptions
from serving.protocols.catalog import CatalogEntry, TensorSpec
from serving.protocols.v2.metadata import SHARED_MEMORY
from serving.tasks.image.classification import Score
from serving.tasks.image.decode import image_bytes
from serving.tasks.image_classification import IMAGE

RESERVED = "triton_"
MAX_TIMEOUT_US = 2**53
MAX_CLASSES = 2**31 - 1

Parameters = dict[str, Any]  # JSON's scalars, or gRPC's
EncodedElements = list[str] | list[bytes]


@dataclass
class WantedOutput:
    """An output that the client asks for."""

    name: str
    classes: int = 0
    """How many of the best classes to return as text; 0: the tensor itself."""

    binary: bool = False


@dataclass
class InferRequest:
    """A checked request: `data` are encoded images, or tensors float32 [N, 3, height, width]."""

    model: CatalogEntry
    shape: list[int]
    data: EncodedElements | NDArray[np.float32]
    outputs: list[WantedOutput]
    id: str = ""
    timeout_us: int = 0
    top_k: int = 1
    """How many of an image's best classes to answer, labels and probabilities alike."""


@dataclass
class OutputTensor:
    """An output's elements in row-major order: numbers as float32, BYTES as bytes."""

    name: str
    datatype: str
    shape: list[int]
    data: NDArray[np.float32] | list[bytes]
    binary: bool = False


@dataclass
class InferResponse:
    """The outputs, in the order in which they were asked for."""

    outputs: list[OutputTensor]
    timings: Timings = field(repr=False)


def check_input(model: CatalogEntry, name: str, datatype: str, shape: list[int], most: int) -> int:
    """Checks the one input, and returns its number of batch elements. Raises InvalidRequestError.

    The shape must be the model's, with or without a batch dimension of at most `most` before it; so
    there is no product that could overflow.
    """
    wanted = model.input
    if name != wanted.name:
        raise InvalidRequestError(f"{model.name} has no input {name[:80]!r}, but {wanted.name}")
    if datatype != wanted.datatype:
        raise InvalidRequestError(f"{name} is {wanted.datatype}, not {datatype[:20]!r}")
    dims = list(wanted.dims)
    if shape == dims:
        return 1
    if shape[1:] == dims or (dims == [1] and len(shape) == 1):
        if 1 <= shape[0] <= most:
            return shape[0]
        raise InvalidRequestError(f"one request may have 1 to {most} inputs, not {shape[0]}")
    batched = ", ".join(str(size) for size in ["N", *dims])
    raise InvalidRequestError(f"{name} has the shape [{batched}] or {dims}, not {shape}")


def check_outputs(model: CatalogEntry, wanted: list[WantedOutput], binary: bool) -> list[WantedOutput]:
    """Returns the outputs to answer: all unless some are named. Raises InvalidRequestError."""
    names = [spec.name for spec in model.outputs]
    for output in wanted:
        if output.name not in names:
            raise InvalidRequestError(
                f"{model.name} has no output {output.name[:80]!r}, but {', '.join(names)}"
            )
        if output.classes and output.name == "FOOD_LABEL":
            raise InvalidRequestError("classification is of numbers: ask it of PROBABILITY")
    if len({output.name for output in wanted}) < len(wanted):
        raise InvalidRequestError("an output is named twice")
    return wanted or [WantedOutput(name, binary=binary) for name in names]


def check_parameters(parameters: Parameters) -> None:
    """Raises InvalidRequestError for names that Triton reserves, and for shared memory."""
    for name in parameters:
        if name.startswith(RESERVED):
            raise InvalidRequestError(f"parameters that begin with {RESERVED} are reserved: {name[:80]}")
        if name.startswith("shared_memory"):
            raise InvalidRequestError(SHARED_MEMORY)


def whole_number(parameters: Parameters, name: str, largest: int) -> int:
    """Returns a parameter from 0 to `largest`; 0 where it is absent. Raises InvalidRequestError."""
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise InvalidRequestError(f"{name} must be a whole number from 0 to {largest}")
    return value


def flag(parameters: Parameters, name: str) -> bool | None:
    """Returns a boolean parameter, None where it is absent. Raises InvalidRequestError."""
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be true or false")
    return value


async def infer(
    service: InferenceService, request: InferRequest, options: RequestOptions
) -> InferResponse:
    """Infers a checked request. Raises what `InferenceService.classify` and `infer` raise."""
    options = options.within(request.timeout_us)
    model, batched = request.model, len(request.shape) > len(request.model.input.dims)
    specs = {spec.name: spec for spec in model.outputs}
    if model.signature is IMAGE:
        images = [EncodedImage(len(element), partial(image_bytes, element)) for element in request.data]
        top_k = max(request.top_k, *(output.classes for output in request.outputs))
        found = await service.classify(images, top_k, options.deadline(), options.bulk)
        outputs = [class_output(specs[each.name], each, found.tops, request) for each in request.outputs]
        return InferResponse(outputs, found.timings)
    assert isinstance(request.data, np.ndarray)  # noqa: S101 the codecs see to it
    logits = await service.infer(request.data, options.deadline(), options.bulk)
    if any(output.classes or not output.binary for output in request.outputs):
        logits.check_finite()
    leading = request.shape[:1] if batched else []
    return InferResponse(
        [logits_output(specs[each.name], each, logits, leading) for each in request.outputs],
        logits.timings,
    )


def class_output(
    spec: TensorSpec, wanted: WantedOutput, tops: list[list[Score]], request: InferRequest
) -> OutputTensor:
    """Returns labels, probabilities, or the best classes as text, of every image.

    A single label or probability per image has the input's shape, `top_k` of them [N, top_k].
    """
    if wanted.classes:
        texts = [
            class_text(score.probability, score.index, score.label)
            for top in tops
            for score in top[: wanted.classes]
        ]
        return OutputTensor(
            spec.name, "BYTES", [len(tops), len(texts) // len(tops)], texts, wanted.binary
        )
    scores = [score for top in tops for score in top[: request.top_k]]
    shape = request.shape if request.top_k == 1 else [len(tops), len(scores) // len(tops)]
    data: NDArray[np.float32] | list[bytes]
    if spec.datatype == "BYTES":
        data = [score.label.encode() for score in scores]
    else:
        data = np.array([score.probability for score in scores], np.float32)
    return OutputTensor(spec.name, spec.datatype, shape, data, wanted.binary)


def logits_output(
    spec: TensorSpec,
    wanted: WantedOutput,
    found: Logits,
    leading: list[int],
) -> OutputTensor:
    """Returns the logits [tensors, classes], or the best classes by logit."""
    logits = found.rows
    if not wanted.classes:
        shape = [*leading, logits.shape[1]]
        return OutputTensor(spec.name, spec.datatype, shape, logits.ravel(), wanted.binary)
    order = np.argsort(-logits, axis=1, kind="stable")[:, : wanted.classes]
    texts = [
        class_text(row[index], index, found.labels[index])
        for row, best in zip(logits.tolist(), order.tolist(), strict=True)
        for index in best
    ]
    return OutputTensor(spec.name, "BYTES", [*leading, order.shape[1]], texts, wanted.binary)


def class_text(value: float, index: int, label: str) -> bytes:
    """Formats `value:index:label`, as the protocol's classification extension has it."""
    return f"{value:f}:{index}:{label}".encode()
