"""Precision check: compares a network's answers with those of fp32 at load, on made-up inputs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from smallplates.errors import ConfigurationError
from smallplates.models.comparison import Compare, difference, independent, probabilities, relative
from smallplates.models.folder import Model
from smallplates.models.task_kinds import kind_of
from smallplates.models.tensors import EXAMPLE_LENGTHS, Array, Signature, TensorSpec
from smallplates.models.vocabulary import tokenizer_json

SAMPLES, TOKENS = 8, 32
TOGETHER = 4  # items of a batch that is timed and compared
NARROW = (1, 2, 3, 7)  # sizes at which kernels compute remainders
SCALES = (0, 1000, -1000)  # factors of numbers from which networks compute NaN, as of 0 / 0
MAX_ELEMENTS = 2**24  # of an item; larger ones are not compared
MAX_DIFFERENCE = 0.02
"""Largest accepted difference in a probability for fp16 and bf16."""

EXACT = 1e-3
"""Largest accepted difference for the same precision in another runtime."""

MAX_EXCESS = 0.01
"""Largest accepted excess of int8's mean difference over the value where the file was created.

For a model of this project that value was 0.018, and the difference 0.041 on processors whose products
saturate. Processors with the same arithmetic have no excess, as far as emulation shows.
"""

FORCED = "SERVING_PRECISION={}"
ONLY_ON_A_CPU = ("int8", "bf16")


def check_gpu_precision(precision: str) -> None:
    """Raises ConfigurationError for a precision that is not supported on GPUs."""
    if precision in ONLY_ON_A_CPU:
        raise ConfigurationError(f"SERVING_PRECISION={precision} needs a CPU")


def sample_images(size: tuple[int, int]) -> NDArray[np.uint8]:
    """Returns noisy patches of colour, uint8 [8, height, width, 3]; always the same."""
    random = np.random.default_rng(0)
    height, width = size
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    patches = random.integers(0, 256, (SAMPLES, 4, 4, 3))
    large = patches[:, rows][:, :, columns]
    noise = random.integers(-40, 41, large.shape)
    images: NDArray[np.uint8] = np.clip(large + noise, 0, 255).astype(np.uint8)
    return images


@dataclass(frozen=True)
class Samples:
    """Made-up inputs, always the same, and how to compare the answers to them."""

    inputs: Sequence[Array]
    """[N, ...] for each input."""

    compare: Compare
    signature: Signature = field(default=Signature("fixed sizes", (), ()))
    """How the network is called: its fixed batch size, and the axes that vary."""

    def part(self, first: int, count: int) -> list[Array]:
        """Returns a batch of `count` inputs."""
        return [array[first : first + count] for array in self.inputs]

    def further(self) -> Iterator[tuple[int, list[Array]]]:
        """Generates batches to compare: of one input, of several, and of one of other numbers or sizes.

        All varying axes have a size of NARROW, 16, 32, 64 or 256, or their limits. If there are several,
        each is also narrow while the others have such a size. The size comes before its batch; 0 comes
        before a narrow batch, and before those of the usual size. Each batch has other numbers, which an
        output that a runtime leaves as it was does not follow.
        """
        signature, batch_size = self.signature, self.signature.batch_size
        yield from ((0, self.part(0, count)) for count in (batch_size or 1, batch_size or TOGETHER))
        one = self.part(0, batch_size or 1)
        for scale in SCALES if any(array.dtype.kind == "f" for array in one) else ():
            yield 0, [array * array.dtype.type(scale if array.dtype.kind == "f" else 1) for array in one]
        most = max((signature.limits[axis] for axis in signature.input_axes), default=0)
        for size in sorted({min(n, most) for n in (*NARROW, *EXAMPLE_LENGTHS, TOKENS, most)} - {0}):
            full = signature.sizes_at(size)
            if signature.elements(full) > MAX_ELEMENTS:
                return
            narrow = [full | {axis: small} for axis in full for small in NARROW if small < full[axis]]
            for each in (*narrow, full) if len(full) > 1 else (full,):
                shapes = [(batch_size or 1, *spec.shape_at(each)) for spec in signature.inputs]
                others = (np.roll(array, sum(each.values())) for array in self.inputs)
                yield size * (each is full), list(map(np.resize, others, shapes))


def samples(model: Model, signature: Signature) -> Samples:
    """Returns images, tokens or, for other graphs, random numbers with axes of EXAMPLE_LENGTHS[0]."""
    kind = kind_of(model.description.task)
    if not kind.plain_graph:
        images = sample_images(model.description.pipeline.output_size)
        return Samples([images], comparison_for(model))
    inputs = random_inputs(signature, signature.batch_size or SAMPLES, EXAMPLE_LENGTHS[0])
    if "text" in kind.needs:
        most = model.description.text_pipeline.max_tokens
        signature = replace(signature, limits=dict.fromkeys(signature.limits, most))
        inputs = token_inputs(signature, sample_tokens(model)[: signature.batch_size or None])
    return Samples(inputs, comparison_for(model), signature)


def comparison_for(model: Model) -> Compare:
    """Returns the function that compares the outputs of a model's task."""
    compare = kind_of(model.description.task).compare or relative
    is_independent = compare is probabilities and model.description.activation == "sigmoid"
    return independent if is_independent else compare


def random_inputs(signature: Signature, count: int, length: int) -> list[Array]:
    """Returns made-up items for a graph, [count, ...] per input; varying axes have this length.

    Integers are 0 or 1, which are valid indices of any table; successive items differ in the first one.
    """
    random = np.random.default_rng(0)
    sizes = signature.sizes_at(length)

    def numbers(spec: TensorSpec) -> Array:
        shape = (count, *spec.shape_at(sizes))
        if np.dtype(spec.dtype).kind == "f":
            return random.normal(size=shape).astype(spec.dtype)
        integers = random.integers(0, 2, shape)
        integers.reshape(count, -1)[:, 0] = np.arange(count) % 2
        return integers.astype(spec.dtype)

    return list(map(numbers, signature.inputs))


def token_inputs(signature: Signature, tokens: Array, mask: Array | None = None) -> list[Array]:
    """Returns a text model's inputs for token ids [N, tokens]; `mask` is 0 for padding."""
    mask = np.ones_like(tokens) if mask is None else mask
    values = {"input_ids": tokens, "attention_mask": mask}
    return [values.get(spec.name, 0 * tokens).astype(spec.dtype) for spec in signature.inputs]


def sample_tokens(model: Model) -> NDArray[np.int64]:
    """Returns token ids from a text model's vocabulary, int64 [8, up to 32]; always the same."""
    count = len(json.loads(tokenizer_json(model.tokenizer()))["model"]["vocab"])
    length = min(TOKENS, model.description.text_pipeline.max_tokens)
    return np.random.default_rng(0).integers(0, count, (SAMPLES, length))


def fp16_or_fp32(
    model: Model, expected: Sequence[Array], found: Sequence[Array], insist: bool
) -> tuple[str, str]:
    """Returns `fp16` if its outputs are close to those of fp32, else `fp32`; and the reason.

    `expected` (fp32) and `found` (fp16) are outputs [N, ...]. If `insist` is set, raises
    ConfigurationError instead of returning `fp32`.
    """
    gap = difference(expected, found, comparison_for(model)).worst
    reason = f"in fp16 answers differ from fp32 by up to {gap:.3f}"
    if gap <= MAX_DIFFERENCE:
        return "fp16", FORCED.format("fp16") if insist else reason
    if insist:
        raise ConfigurationError(f"SERVING_PRECISION=fp16 cannot be used: {reason}")
    return "fp32", reason
