"""Warm-up: runs and measures every batch size before a worker is ready, and chooses the batch cap.

The cap has to be measured: on a CPU, a batch of eight takes some networks five times as long as a single
item and others ten times; on a GPU, large batches are far faster. Called by `process.py` on the thread
that will call the backend.
"""

import contextlib
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from smallplates.engine.backend import Backend
from smallplates.engine.report import Profile
from smallplates.errors import ConfigurationError, in_one_line
from smallplates.logging import logger
from smallplates.models.comparison import difference, relative
from smallplates.models.folder import Model
from smallplates.models.scores import are_probabilities
from smallplates.models.task_kinds import kind_of
from smallplates.models.tensors import EXAMPLE_LENGTHS, Signature, check_outputs, examples
from smallplates.settings import Settings
from smallplates.worker import precision_check
from smallplates.worker.device_errors import DeviceLostError, OutOfDeviceMemoryError
from smallplates.worker.precision_check import TOGETHER, sample_images

NEARLY_BEST = 0.95  # share of the best throughput
ROUNDS_S = 0.05  # seconds of measuring per size if nothing disturbs it
MAX_ROUNDS_S = 1.0  # seconds of measuring in total if other programs disturb it
MIN_ROUNDS, MAX_ROUNDS = 5, 20
SLOW_ROUND_S, SLOW_ROUNDS = 0.25, 1  # if rounds take longer, this many after the first are enough

MAX_GROWTH_MS = 10.0
"""A batch that takes longer is not doubled: from there on, waiting costs more than batching saves."""

MAX_BATCH_MS = 150.0
"""A batch that takes longer does not raise the limit of elements: other requests wait for it."""

MAX_CALL_S = 0.25
"""Batches of varying sizes that take longer are not measured further."""

MAX_FIRST_CALL_S = 0.5
"""Batches of varying sizes are not tried at all if smaller ones suggest that they take longer."""

MIXED = 0.1
"""Largest difference of images in a batch from each alone; int8 may have a scale for the whole batch."""

EXAMPLES = (0, 1, 2)
"""Numbers that warm-up tries as all numbers of a graph's inputs, until the graph computes them."""

NUMBERS_CURE = (
    "; warm-up tried 0, 1 and 2 as all numbers: if the graph accepts others only, such as an encoder's "
    'categories, let it accept any number (in scikit-learn with OneHotEncoder(handle_unknown="ignore"))'
)


def warm_up(
    backend: Backend,
    signatures: Sequence[Signature],
    batch_sizes: Sequence[int],
    settings: Settings,
    largest_size: int = 0,
) -> Profile:
    """Runs and measures batches of the first signature, and of other signatures whose sizes vary.

    Signatures of fixed sizes, or with the same inputs as the first, are run only once, because they call
    the same network. Batch sizes beyond `batch_sizes` are tried up to `largest_size`; see `grow`. Raises
    ConfigurationError for wrong outputs.
    """
    inputs = [spec.name for spec in signatures[0].inputs]
    profiles: list[dict[int, dict[int, float]]] = []
    max_batch_elements: list[int] = []
    signatures = [*with_examples(backend, signatures)]
    for signature in signatures:
        sizes = [signature.batch_size] if signature.batch_size else batch_sizes
        alike = [spec.name for spec in signature.inputs] == inputs
        if profiles and (alike or not signature.input_axes):
            run(backend, signature, signature.batch_size or 1, signature.sizes_at(min(profiles[0])))
            max_batch_elements.append(max_batch_elements[0])
            continue
        by_length = measure_lengths(backend, signature, sizes, is_open=largest_size > 0)
        for length, batch_ms in by_length.items():
            grow(backend, signature, batch_ms, length, largest_size)
        max_batch_elements.append(
            signature.batch_elements or choose_elements(signature, by_length, settings)
        )
        profiles.append(by_length)
    first = list(profiles[0].values())
    cap = max(choose_cap(settings, batch_ms) for batch_ms in first)
    if cap > 1 and images_depend(backend, signatures[0], first[0]):
        logger().warning("images in a batch change each other's results: each is computed alone")
        cap = 1
    distinct = {(each.inputs[0].name, each.elements(each.limits)): each for each in signatures}
    return Profile(
        batch_ms=first[len(first) // 2],
        batch_cap=cap,
        max_batch_elements=max_batch_elements,
        largest_ms=max(largest_ms(backend, signature) for signature in distinct.values()),
    )


def images_depend(backend: Backend, signature: Signature, sizes: Collection[int]) -> bool:
    """Returns whether images are computed otherwise in a batch, of one of the `sizes`, than alone.

    A network that normalises over its batch is an example. Nobody else compares image classifiers.
    """
    size = max((size for size in sizes if size <= TOGETHER), default=1)
    if not signature.normalises or size == 1 or 1 not in sizes:
        return False
    height, width, _ = signature.inputs[0].shape_at({})
    images = sample_images((height, width))[:size]
    alone = np.concatenate([backend.infer(signature, [image[None]])[0] for image in images])
    return difference([alone], backend.infer(signature, [images]), relative).worst > MIXED


def check_logits(backend: Backend, model: Model, signature: Signature) -> None:
    """Raises ConfigurationError if a network has probabilities where its task computes them.

    Numbers that the network does not compute are left out.
    """
    kind, answers, count = kind_of(model.description.task), [], signature.batch_size or 1
    if kind.compare and all(name.endswith("logits") for name in kind.outputs):
        with contextlib.suppress(Exception):  # of the library, or for a tokeniser that cannot be read
            samples = precision_check.samples(model, signature)
            firsts = range(0, len(samples.inputs[0]) - count + 1, count)
            answers = [backend.infer(signature, samples.part(first, count)) for first in firsts]
    if any(all(map(are_probabilities, output)) for output in zip(*answers, strict=True)):
        raise ConfigurationError(
            "the network returns probabilities, but logits are needed, because the service computes the "
            "probabilities: remove the softmax at the network's end"
        )


def with_examples(backend: Backend, signatures: Sequence[Signature]) -> Iterator[Signature]:
    """Yields the signatures; with ones or twos in place of zeros if a graph of any meaning needs these.

    Zeros may be an empty mask, or a text without the token at its end, such as BART's 2, or no category
    of an encoder. Integers are tried before all numbers. Raises ConfigurationError if the graph computes
    none of these.
    """
    for signature in signatures:
        is_known = any(spec.example or spec.ending for spec in signature.inputs)
        is_known |= not signature.failure_is_client_error
        refusals = []
        for each in () if is_known else with_numbers(signature):
            try:
                try_lengths(backend, each)
            except OutOfDeviceMemoryError:
                break
            except ConfigurationError as error:
                refusals.append(error)
            else:
                signature = each
                break
        else:
            if refusals:
                raise ConfigurationError(f"{refusals[0]}{NUMBERS_CURE}") from refusals[0]
        yield signature


def with_numbers(signature: Signature) -> Iterator[Signature]:
    """Yields the signature with each of EXAMPLES as all integers, then as all numbers; each once."""
    tried = dict.fromkeys(
        tuple(
            replace(spec, example=number * (np.dtype(spec.dtype).kind in kinds))
            for spec in signature.inputs
        )
        for kinds in ("biu", "biuf")
        for number in EXAMPLES
    )
    yield from (replace(signature, inputs=inputs) for inputs in tried)


def try_out(backend: Backend, signatures: Sequence[Signature]) -> None:
    """Computes an item of each signature without measuring; the first worker's measurements apply.

    Raises ConfigurationError if an item cannot be computed.
    """
    for signature in with_examples(backend, signatures):
        try_lengths(backend, signature)


def try_lengths(backend: Backend, signature: Signature) -> None:
    """Computes an item of the first length that the network supports. Raises ConfigurationError."""
    refusals = []
    for length in signature.example_lengths:
        try:
            run(backend, signature, signature.batch_size or 1, signature.sizes_at(length))
            return
        except ConfigurationError as error:
            refusals.append(error)
    raise refusals[0]


def measure_lengths(
    backend: Backend, signature: Signature, batch_sizes: Sequence[int], is_open: bool = False
) -> dict[int, dict[int, float]]:
    """Returns the result of `measure` for each of EXAMPLE_LENGTHS; a fixed size is measured once.

    If larger batches are tried later (`is_open`), longer items are measured in batches of at most twice
    the elements with which shorter ones are computed fastest: larger batches would not be chosen.
    Lengths that the network does not support, such as odd ones, are left out. The largest item is only
    measured if it supports no other one. Raises ConfigurationError if it supports none of them.
    """
    by_length: dict[int, dict[int, float]] = {}
    by_elements: dict[int, float] = {}
    refusal: ConfigurationError | None = None
    for length in signature.example_lengths[: 1 if signature.batch_elements else None]:
        if length > EXAMPLE_LENGTHS[-1] and by_length:
            break
        elements = signature.elements(signature.sizes_at(length))
        most = 2 * choose_best(by_elements) if by_elements and is_open else math.inf
        sizes = [size for size in batch_sizes if size * elements <= most] or [min(batch_sizes)]
        try:
            by_length[length] = measure(backend, signature, sizes, length)
            by_elements |= {size * elements: ms for size, ms in by_length[length].items()}
        except ConfigurationError as error:
            refusal = refusal or error  # the shortest length's: longer ones may be too long
            if signature.input_axes:
                logger().warning("items of a size cannot be computed", length=length, reason=str(error))
    if refusal and not by_length:
        raise refusal
    return by_length


def largest_ms(backend: Backend, signature: Signature) -> float:
    """Returns the time in ms for the largest item if elements are measured, else 0.

    A client may send such an item at any time, and the worker that computes it must not count as hung.
    """
    if not signature.input_axes or signature.batch_elements:
        return 0.0
    start = time.perf_counter()
    try:
        largest = signature.sizes_at(max(signature.limits.values()))
        run(backend, signature, signature.batch_size or 1, largest)
    except (ConfigurationError, OutOfDeviceMemoryError) as error:
        logger().warning("the largest item cannot be computed", reason=str(error))
    return round((time.perf_counter() - start) * 1000, 3)


def measure(
    backend: Backend, signature: Signature, batch_sizes: Sequence[int], length: int = 0
) -> dict[int, float]:
    """Returns the time in ms for each batch size that fits into the device's memory, ascending.

    The time is the shortest of several calls, as on a quiet machine. The sizes take turns, so that other
    programs disturb all sizes equally. Varying axes have the size `length`. Raises ConfigurationError
    for a wrong output, and if not even a single item fits into the memory.
    """
    sizes = signature.sizes_at(length)
    times: dict[int, list[float]] = {size: [] for size in sorted(batch_sizes)}
    too_large = ""
    if sizes and len(times) > 1:  # the slow very first call would mislead `is_too_slow`
        with contextlib.suppress(OutOfDeviceMemoryError):
            run(backend, signature, min(times), sizes)
    for number in range(MAX_ROUNDS):
        for size in [size for size in batch_sizes if size in times]:
            if sizes and is_too_slow(size, times):
                del times[size]
                continue
            start = time.perf_counter()
            try:
                run(backend, signature, size, sizes)
            except OutOfDeviceMemoryError as error:
                too_large = str(error)
                logger().warning("a batch size does not fit into the device's memory", size=size)
                del times[size]
                continue
            times[size].append(time.perf_counter() - start)
        if not times:
            raise ConfigurationError(f"the device's memory is too small for one input: {too_large}")
        # the first call of each size plans and allocates, so it does not count
        seconds = sum(sum(durations[1:]) for durations in times.values())
        if number >= SLOW_ROUNDS and seconds > min(number * SLOW_ROUND_S, MAX_ROUNDS_S):
            break
        if number + 1 < MIN_ROUNDS or seconds <= ROUNDS_S * len(times):
            continue
        if is_smooth([min(durations) / size for size, durations in times.items()]):
            break
    return {size: round(min(durations) * 1000, 3) for size, durations in times.items()}


def is_too_slow(size: int, times: Mapping[int, Sequence[float]]) -> bool:
    """Returns whether a batch of varying sizes takes, or would take, too long to be measured.

    The smallest size always runs.
    """
    if size == min(times):
        return False
    if times[size]:
        return min(times[size]) > MAX_CALL_S
    ran = [(smaller, min(seconds)) for smaller, seconds in times.items() if seconds and smaller < size]
    return bool(ran) and ran[-1][1] * size / ran[-1][0] > MAX_FIRST_CALL_S


def grow(
    backend: Backend, signature: Signature, batch_ms: dict[int, float], length: int, largest_size: int
) -> None:
    """Adds doubled batch sizes to `batch_ms` while doubling gains 5 % and the batches are quick."""
    size = max(batch_ms)
    while 2 * size <= largest_size and batch_ms[size] <= MAX_GROWTH_MS and not signature.batch_size:
        if len(batch_ms) > 1 and choose_best(batch_ms) < size:
            return
        try:
            batch_ms |= measure(backend, signature, [2 * size], length)
        except ConfigurationError as error:
            logger().warning("a batch size cannot be computed", size=2 * size, reason=str(error))
            return
        size *= 2


def is_smooth(seconds: Sequence[float]) -> bool:
    """Returns whether the times per item, by ascending batch size, first fall and then rise.

    Times disturbed by other programs rise and fall several times.
    """
    best = seconds.index(min(seconds))
    falls = all(after * NEARLY_BEST <= before for before, after in pairwise(seconds[: best + 1]))
    return falls and all(after >= before * NEARLY_BEST for before, after in pairwise(seconds[best:]))


def run(backend: Backend, signature: Signature, size: int, sizes: dict[str, int]) -> None:
    """Computes a batch of examples and checks the outputs.

    Raises OutOfDeviceMemoryError, DeviceLostError, and ConfigurationError for every other error.
    """
    try:
        outputs = backend.infer(signature, examples(signature, size, sizes))
        check_outputs(signature, outputs, size, sizes)
    except (OutOfDeviceMemoryError, DeviceLostError):
        raise
    except Exception as error:  # every library has its own exception types
        reason = in_one_line(error)
        if size > 1:
            raise ConfigurationError(
                f"the model cannot compute {size} inputs at once; if its file has a fixed "
                f"batch size, export it with a variable one, or set SERVING_MAX_BATCH_SIZE=1: {reason}"
            ) from error
        raise ConfigurationError(
            f"the model cannot compute an input: {reason}{cure_for_sizes(signature, sizes)}"
        ) from error
    if signature.checks_finite and not all(np.isfinite(array).all() for array in outputs):
        raise ConfigurationError(
            "the model returns numbers that are not finite for an input of zeros: "
            "its weights, or mean and std in model.json, are wrong"
        )


def cure_for_sizes(signature: Signature, sizes: Mapping[str, int]) -> str:
    """Returns what helps if a graph computes one size only of axes that it declares as open."""
    if not sizes:
        return ""
    tried = " and ".join(f"{axis} = {size}" for axis, size in sizes.items())
    limits = (
        "" if signature.checks_finite else ", or set limits in model.json to the sizes that it computes"
    )
    return f"; it had {tried}: if the graph computes other sizes only, export it with open axes{limits}"


def choose_cap(settings: Settings, profile: Mapping[int, float]) -> int:
    """Returns the maximum from the settings, or for `auto` the result of `choose_best`.

    `profile`: batch size -> milliseconds.
    """
    if settings.max_batch_size != "auto":
        return min(settings.max_batch_size, max(profile))
    return choose_best(profile)


def choose_elements(
    signature: Signature, by_length: Mapping[int, Mapping[int, float]], settings: Settings
) -> int:
    """Returns the elements of the largest of the batches that `choose_cap` takes for each length.

    For `auto`, those longer than the shortest count only if they are quick. `by_length`: length -> batch
    size -> milliseconds.
    """
    caps = {length: choose_cap(settings, batch_ms) for length, batch_ms in by_length.items()}
    if settings.max_batch_size == "auto":
        shortest = min(caps)
        caps = {
            length: size
            for length, size in caps.items()
            if length == shortest or by_length[length][size] <= MAX_BATCH_MS
        }
    return max(size * signature.elements(signature.sizes_at(length)) for length, size in caps.items())


def choose_best(batch_ms: Mapping[int, float]) -> int:
    """Returns the smallest batch size whose throughput is within 5 % of the best."""
    throughput = {size: size / ms for size, ms in batch_ms.items()}
    best = max(throughput.values())
    return min(size for size, rate in throughput.items() if rate >= NEARLY_BEST * best)
