"""Precision check: compares a network's answers with those of fp32 at load, on made-up inputs."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

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

MARGIN_SHARE = 0.1
"""Largest accepted difference for them as a share of the median margin of fp32."""

CLEAR_MARGIN, LEAST_SAMPLES = 0.02, 256
"""They change the best class of none of at least so many samples with a larger margin in fp32."""

FEW, MOST_ITEMS, MAX_AGREEMENT_S = 64, 1024, 60
"""Items whose margins show their median; the most items among which so many samples may be; and the most
seconds that LEAST_SAMPLES may take. If it takes more, fp32 is used."""

EXACT = 1e-3
"""Largest accepted difference for the same precision in another runtime."""

MAX_EXCESS = 0.01
"""Largest accepted excess of int8's mean difference over the value where the file was created.

For a model of this project that value was 0.018, and the difference 0.041 on processors whose products
saturate. Processors with the same arithmetic have no excess, as far as emulation shows.
"""

Infer = Callable[[Sequence[Any]], list[Array]]
"""Computes outputs [N, ...] from inputs [N, ...], which are arrays, or PyTorch's tensors."""

IMAGE = Signature("image", (), ())
"""How the networks of image classifiers are called, as far as samples depend on it."""

FORCED = "SERVING_PRECISION={}"
ONLY_ON_A_CPU = ("int8", "bf16")


def check_gpu_precision(precision: str) -> None:
    """Raises ConfigurationError for a precision that is not supported on GPUs."""
    if precision in ONLY_ON_A_CPU:
        raise ConfigurationError(f"SERVING_PRECISION={precision} needs a CPU")


def sample_images(size: tuple[int, int], seed: int = 0) -> NDArray[np.uint8]:
    """Returns noisy patches of colour, uint8 [8, height, width, 3]; always the same for a seed."""
    random = np.random.default_rng(seed)
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

    make: Callable[[int], Sequence[Any]]
    """Makes [N, ...] for each input, from a seed."""

    compare: Compare
    signature: Signature = field(default=Signature("fixed sizes", (), ()))
    """How the network is called: its fixed batch size, and the axes that vary."""

    @cached_property
    def inputs(self) -> Sequence[Array]:
        """The first inputs, which are also timed."""
        return self.make(0)

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
        size = model.description.pipeline.output_size
        return Samples(lambda seed: [sample_images(size, seed)], comparison_for(model))
    count = signature.batch_size or SAMPLES
    if "text" not in kind.needs:
        make = partial(random_inputs, signature, count, EXAMPLE_LENGTHS[0])
        return Samples(make, comparison_for(model), signature)
    most, tokens = model.description.text_pipeline.max_tokens, sample_tokens(model, MOST_ITEMS)
    signature = replace(signature, limits=dict.fromkeys(signature.limits, most))
    return Samples(
        lambda seed: token_inputs(signature, np.roll(tokens, -seed * count, 0)[:count]),
        comparison_for(model),
        signature,
    )


def comparison_for(model: Model) -> Compare:
    """Returns the function that compares the outputs of a model's task."""
    compare = kind_of(model.description.task).compare or relative
    is_independent = compare is probabilities and model.description.activation == "sigmoid"
    return independent if is_independent else compare


def random_inputs(signature: Signature, count: int, length: int, seed: int = 0) -> list[Array]:
    """Returns made-up items for a graph, [count, ...] per input; varying axes have this length.

    Integers are 0 or 1, which are valid indices of any table; successive items differ in the first one.
    """
    random = np.random.default_rng(seed)
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


def sample_tokens(model: Model, texts: int = SAMPLES) -> NDArray[np.int64]:
    """Returns token ids from a text model's vocabulary, int64 [texts, up to 32]; always the same."""
    count = len(json.loads(tokenizer_json(model.tokenizer()))["model"]["vocab"])
    length = min(TOKENS, model.description.text_pipeline.max_tokens)
    return np.random.default_rng(0).integers(0, count, (texts, length))


def agreement(exact: Infer, lower: Infer, samples: Samples) -> tuple[str, float, float, int]:
    """Compares a lower precision with fp32 until enough samples have a clear best class.

    Returns why it is not acceptable, empty if it is; the largest difference of a number; the share of
    samples with the same best class, which is 1 for numbers without classes; and the number of samples.
    Ends as soon as an answer differs by too much, or if it would take too long. Raises what the networks
    raise.
    """
    worst, margins, changed, items, objection = 0.0, np.empty(0), np.empty(0, bool), 0, ""
    start = time.perf_counter()
    for seed in range(MOST_ITEMS):
        batch = samples.make(seed)
        gap = difference(exact(batch), lower(batch), samples.compare)
        worst, items = max(worst, gap.worst), items + len(batch[0])
        margins, changed = np.append(margins, gap.margins), np.append(changed, gap.changed)
        clear = margins > CLEAR_MARGIN
        usual = MARGIN_SHARE * float(np.median(margins)) if items >= FEW and margins.size else math.inf
        seconds = (time.perf_counter() - start) * LEAST_SAMPLES / items
        if worst > (most := min(MAX_DIFFERENCE, usual)):
            objection = f"differs by {worst:.5f}; at most {most:.5f} is accepted"
        elif (changed & clear).any():
            objection = (
                f"changes the best class of a sample whose margin in fp32 is above {CLEAR_MARGIN}"
            )
        elif min(items, clear.sum()) >= LEAST_SAMPLES:
            break
        elif items >= MOST_ITEMS:
            objection = f"{clear.sum()} of {items} samples have a margin above {CLEAR_MARGIN} in fp32"
        elif seconds > MAX_AGREEMENT_S:
            objection = f"comparing {LEAST_SAMPLES} samples takes {seconds:.0f} s"
        if objection:
            break
    share = 1 - float(changed.sum()) / max(1, len(changed))
    return objection, round(worst, 5), round(share, 4), len(changed)


def fp16_or_fp32(exact: Infer, lower: Infer, samples: Samples, insist: bool) -> tuple[str, str]:
    """Returns `fp16` if its outputs agree with those of fp32, else `fp32`; and the reason.

    If `insist` is set, returns `fp16` unless outputs differ by more than MAX_DIFFERENCE: raises
    ConfigurationError then.
    """
    objection, worst, share, count = agreement(exact, lower, samples)
    if insist and worst > MAX_DIFFERENCE:
        raise ConfigurationError(f"SERVING_PRECISION=fp16 cannot be used: fp16 {objection}")
    if insist:
        return "fp16", FORCED.format("fp16")
    same = f"fp16 names fp32's class for {share:.1%} of {count} samples"
    return ("fp32", f"fp16: {objection}") if objection else ("fp16", same)
