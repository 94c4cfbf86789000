"""Choice of runtime and precision on a CPU: measures a backend's candidates at load.

The first instance measures for all instances. The first candidate is the reference. Another candidate is
chosen if its answers agree with the reference's at all compared sizes, and if it takes at least a tenth
less time than the best candidate so far.
"""

import ctypes
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from smallplates.engine.backend import Trial
from smallplates.errors import ConfigurationError, in_one_line
from smallplates.logging import logger
from smallplates.models.comparison import difference
from smallplates.models.description import Kind
from smallplates.models.folder import Model
from smallplates.models.tensors import Array
from smallplates.settings import Settings
from smallplates.system.pdeathsig import die_with_parent
from smallplates.worker import precision_check
from smallplates.worker.precision_check import TOGETHER, Infer, Samples
from smallplates.worker.shared_choice import shared_choice

MAX_TIME_RATIO = 0.9
"""Largest accepted time, relative to the best candidate so far."""

QUICK_MS = 1.0
"""Networks that take less time use the reference, since the web process itself takes as long."""

MAX_INT8_DIFFERENCE = 0.05
"""Largest accepted mean difference for an int8 file between two runtimes."""

MAX_ITEM_EXCESS = 0.1
"""By how much more an int8 file may differ in a further batch, which has few items.

Its limit is for the mean of eight items; single ones differed by up to three times as much.
"""

MIN_ROUNDS, MAX_ROUNDS, MAX_TRIAL_S = 3, 40, 0.2
MAX_PROCESS_S = 180  # after this time a process that measures is killed
MAX_FURTHER_S, MAX_FURTHER_ITEMS = 3, 50
"""The reference's time for further batches: some seconds, and the time of some items."""

MAX_REASON = 300  # characters of a library's message
PRECISIONS = ("int8", "bf16", "fp32")  # lower ones first


@dataclass(frozen=True)
class Candidate:
    """A combination of runtime and precision."""

    runtime: str
    precision: str
    refusal: str = ""
    """Why it is not tried; empty if it is."""

    max_difference: float = math.inf
    """Largest accepted difference from the reference: the mean of int8, otherwise the worst."""

    agreement: float | None = None
    """See `Trial.agreement`; known before for int8."""

    samples: int | None = None


@dataclass(frozen=True)
class Choice:
    """The runtime and the precision to use."""

    runtime: str
    precision: str
    reason: str
    trials: list[Trial]
    """All candidates with their measurements; the reference is the first if several were measured."""

    largest_size: int | None = None
    """See `Trial.largest_size`."""


def device_for(settings: Settings) -> str:
    """Returns the setting `device`; but `cpu` for `auto` if the precision in the settings needs one."""
    only_cpu = settings.device == "auto" and settings.precision in precision_check.ONLY_ON_A_CPU
    return "cpu" if only_cpu else settings.device


def int8_candidate(
    model: Model,
    file: Kind,
    settings: Settings,
    runtime: str,
    refusal: str = "",
    only_static: bool = False,
) -> Candidate:
    """Returns the candidate for the model's int8 file, which `auto` tries if model.json says it is fit.

    Processors compute int8 differently, so a file that was fit on the machine that created it may not be
    fit here. Its answers may differ from fp32 only slightly more than they did there. `only_static`
    means that the runtime computes dynamic int8 as slowly as fp32 (as measured with OpenVINO).
    """
    most, verdict = MAX_INT8_DIFFERENCE, model.verdict(file)
    if not model.has(file):
        refusal = f"the model has no {file}"
    elif settings.precision in ("auto", "int8") and model.is_of_other_weights(file):
        refusal = f"{file} was made from other weights: run `smallplates quantize` again"
    elif settings.precision == "auto":
        if verdict is None:
            refusal = f"model.json does not say whether {file} is fit for use"
        elif not verdict.fit:
            refusal = f"{file} is not fit for use: {verdict.reason}"
        elif only_static and verdict.method == "dynamic":
            refusal = refusal or f"{runtime} is not faster in dynamic int8 than in fp32"
        else:
            most = verdict.sample_difference + precision_check.MAX_EXCESS
    known = (verdict.agreement, verdict.photos) if verdict else ()
    return Candidate(runtime, "int8", refusal, most, *known)


def choose(
    candidates: Sequence[Candidate],
    settings: Settings,
    scratch: Path | None,
    load: Callable[[Candidate], Infer],
    samples: Callable[[], Samples],
    memory_mb: float = math.inf,
) -> Choice:
    """Returns the runtime and precision to use; the same for all instances of a model.

    If the settings name a precision, only candidates in that precision are considered. `load` loads a
    candidate to compute `samples`, in a worker in a child process, see `in_a_fork`; what it returns
    raises ValueError for outputs of a wrong shape. Each may take up to `memory_mb` MB of private memory.
    Raises ConfigurationError if no candidate is left.
    """
    precision = settings.precision
    if precision != "auto":
        candidates = [candidate for candidate in candidates if candidate.precision == precision]
    usable = [candidate for candidate in candidates if not candidate.refusal]
    refusals = [Trial(one.runtime, one.precision, one.refusal) for one in candidates if one.refusal]
    reasons = "; ".join(dict.fromkeys(trial.reason for trial in refusals))
    if not usable:
        if precision == "fp16":
            raise ConfigurationError("SERVING_PRECISION=fp16 needs a GPU")
        reasons = reasons or "the runtime does not support it"
        raise ConfigurationError(f"SERVING_PRECISION={precision} cannot be used on a CPU: {reasons}")
    if usable[0].max_difference < math.inf:  # the settings leave out what it has to agree with
        shared_choice(scratch, "not-compared", partial(warn, usable[0]))
    if len(usable) == 1:
        reason = reasons or "it is the only one available"
        if precision != "auto":
            reason = precision_check.FORCED.format(precision)
        return Choice(usable[0].runtime, usable[0].precision, reason, refusals)

    def measure_all() -> list[dict[str, Any]]:
        run = in_a_fork if scratch else attempt
        return [asdict(trial) for trial in measure(usable, load, samples, memory_mb, run)]

    trials = [Trial(**fields) for fields in shared_choice(scratch, "choice", measure_all)]
    best = next(trial for trial in trials if trial.chosen)
    reason = best.reason
    if best is trials[0]:
        others = (*trials[1:], *refusals)
        reason = "; ".join(f"{other.runtime} in {other.precision}: {other.reason}" for other in others)
    return Choice(best.runtime, best.precision, reason, [*trials, *refusals], best.largest_size)


def warn(unchecked: Candidate) -> None:
    """Logs that wrong answers of a candidate would not be noticed."""
    logger().warning(
        "answers are not compared with the reference",
        runtime=unchecked.runtime,
        precision=unchecked.precision,
    )


def attempt(compute: Callable[[], Any]) -> tuple[Any, str]:
    """Returns what `compute` returns, and an empty string; or None, and why it failed."""
    try:
        return compute(), ""
    except Exception as error:  # every library has its own exception types
        return None, in_one_line(error)[:MAX_REASON]


def measure(
    candidates: Sequence[Candidate],
    load: Callable[[Candidate], Infer],
    samples: Callable[[], Samples],
    memory_mb: float = math.inf,
    run: Callable[[Callable[[], Any]], tuple[Any, str]] = attempt,
) -> list[Trial]:
    """Measures the candidates and returns their trials, exactly one of them `chosen`.

    `run` is `attempt` or `in_a_fork`. If the reference, the first candidate, fails, it is chosen:
    loading it will show why.
    """
    reference, *others = candidates
    name = reference.precision
    answers, error = run(lambda: reference_answers(load(reference), samples()))
    if error:
        reason = f"not tried: {name} in {reference.runtime} cannot be measured: {error}"
        return [Trial(one.runtime, one.precision, reason, chosen=one is reference) for one in candidates]
    expected, ms = answers
    best = Trial(reference.runtime, name, "the reference", ms)
    trials, good = [best], [best]
    for candidate in others:
        trial = Trial(candidate.runtime, candidate.precision, "")
        faster = next((other for other in good if is_faster_for_sure(other, candidate)), None)
        if ms < QUICK_MS:
            trial = replace(trial, reason=f"not tried: {name} takes only {ms} ms per item")
        elif faster:
            trial = replace(trial, reason=f"not tried: {faster.runtime} is faster in {faster.precision}")
        else:
            most_ms = MAX_TIME_RATIO * (best.ms or 0)
            pair = candidate, reference
            answer, error = run(partial(measure_one, pair, load, samples, expected, memory_mb, most_ms))
            trial = answer or replace(trial, reason=f"it cannot be used: {error}")
        if not trial.reason:
            good.append(trial)
            if (trial.ms or 0) > MAX_TIME_RATIO * (best.ms or 0):
                reason = f"less than 10 % faster: {trial.ms} instead of {best.ms} ms per item"
                trial = replace(trial, reason=reason)
            else:
                reason = f"it agrees with {name} and is faster: {trial.ms} instead of {ms} ms per item"
                trial = best = replace(trial, reason=reason)
        trials.append(trial)
    return [replace(trial, chosen=trial == best) for trial in trials]


def is_faster_for_sure(trial: Trial, candidate: Candidate) -> bool:
    """Returns whether `candidate` need not be tried: `trial` agrees and is certain to be faster.

    That is so if its precision is lower and either the runtime is the same or the candidate is in fp32.
    """
    lower = PRECISIONS.index(trial.precision) < PRECISIONS.index(candidate.precision)
    return lower and (trial.runtime == candidate.runtime or candidate.precision == "fp32")


def reference_answers(infer: Infer, samples: Samples) -> tuple[list[Any], float]:
    """Computes the samples and, while there is time, the further batches.

    Returns the outputs for all samples, then those for each further batch, or None if it is refused; and
    the milliseconds per item.
    """
    outputs, ms = time_answers(infer, samples)
    answers: list[Any] = [outputs]
    end = time.perf_counter() + MAX_FURTHER_S + MAX_FURTHER_ITEMS * ms / 1000
    s_per_element = ms / 1000 / sum(array[:1].size for array in samples.inputs)
    for _, batch in samples.further():
        start, elements = time.perf_counter(), sum(array.size for array in batch)
        if ms < QUICK_MS or start + elements * s_per_element > end:
            break
        answers.append(attempt(partial(infer, batch))[0])
        s_per_element = min(s_per_element, (time.perf_counter() - start) / elements)
    return answers, ms


def measure_one(
    pair: tuple[Candidate, Candidate],
    load: Callable[[Candidate], Infer],
    samples: Callable[[], Samples],
    expected: list[Any],
    memory_mb: float,
    most_ms: float,
) -> Trial:
    """Returns a candidate's trial; its reason says why it is unacceptable, and is empty if it is not.

    `pair` is the candidate and the reference. If it agrees, it computes the further batches, twice.
    Raises ValueError if their answers differ from `expected` or from call to call, and what the library
    raises. Batches that the reference refuses are computed, too, because they might end the process.
    Their answers, of memory behind a tensor or from the last call, are an error if the reference
    computes larger batches. At last, bf16 is compared on more samples, if it takes up to `most_ms`.
    """
    candidate, reference = pair
    inputs, before, largest, only_here = samples(), own_memory_mb(), 0, ""
    outputs, ms = time_answers(infer := load(candidate), inputs)
    memory = round(max(0.0, own_memory_mb() - before), 1)
    is_int8, most = candidate.precision == "int8", candidate.max_difference
    gaps = difference(expected[0], outputs, inputs.compare)
    gap = round(gaps.mean if is_int8 else gaps.worst, 5)
    known = candidate.agreement, candidate.samples
    trial = Trial(candidate.runtime, candidate.precision, "", ms, gap, *known, memory)
    if gap > most:
        return replace(trial, reason=f"differs by {gap}; at most {most:.3f} is accepted")
    most += MAX_ITEM_EXCESS if is_int8 else 0
    for (size, batch), answer in zip(inputs.further(), expected[1:], strict=False):
        shapes = ", ".join(str(list(array.shape)) for array in batch)
        if answer is None:
            only_here = shapes if computes_something(infer, batch) else only_here
            continue
        if only_here:
            raise ValueError(f"computes something for inputs {only_here}, which the reference refuses")
        first, second, largest = infer(batch), infer(batch), max(largest, size)
        if any(one.tobytes() != other.tobytes() for one, other in zip(first, second, strict=True)):
            raise ValueError(f"answers to the same inputs {shapes} differ from call to call")
        gaps = difference(answer, first, inputs.compare)
        here = gaps.mean if is_int8 else gaps.worst
        if here > most:
            raise ValueError(
                f"differs by {here:.5f} for inputs {shapes}; at most {most:.3f} is accepted"
            )
    takes = f"takes {memory} MB in each worker; at most {memory_mb:.0f} are accepted"
    reason = takes if memory > memory_mb else ""
    if candidate.precision == "bf16" and ms <= most_ms and not reason:
        reason, worst, share, count = precision_check.agreement(load(reference), infer, inputs)
        trial = replace(trial, difference=max(gap, worst), agreement=share, samples=count)
    return replace(trial, reason=reason, largest_size=largest or None)


def computes_something(infer: Infer, batch: list[Array]) -> bool:
    """Returns whether a batch is not refused; its outputs may have a wrong shape, see `choose`."""
    try:
        infer(batch)
    except ValueError:  # the last call's output, for example
        return True
    except Exception:  # the library's
        return False
    return True


def time_answers(infer: Infer, samples: Samples) -> tuple[list[Array], float]:
    """Computes the samples one by one, or in batches of the network's fixed size.

    Returns the outputs [N, ...], and the milliseconds per item over a single item and a batch, each the
    shortest time of several rounds.
    """
    alone = samples.signature.batch_size or 1
    answers = [infer(samples.part(first, alone)) for first in range(0, len(samples.inputs[0]), alone)]
    least = dict.fromkeys({alone, samples.signature.batch_size or TOGETHER}, math.inf)
    end = time.perf_counter() + MAX_TRIAL_S
    for turn in range(MAX_ROUNDS):
        for size in least:
            batch = samples.part(0, size)
            start = time.perf_counter()
            infer(batch)
            least[size] = min(least[size], time.perf_counter() - start)
        if turn + 1 >= MIN_ROUNDS and time.perf_counter() > end:
            break
    outputs = [np.concatenate(output) for output in zip(*answers, strict=True)]
    return outputs, round(1000 * sum(least.values()) / sum(least), 3)


def in_a_fork(compute: Callable[[], Any]) -> tuple[Any, str]:
    """Makes an `attempt` in a child process: loaded libraries and crashes do not affect this one.

    This one must not have computed anything yet, because the child would lack the libraries' threads.
    The child is killed after MAX_PROCESS_S.
    """
    context, parent = get_context("fork"), os.getpid()
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        die_with_parent(parent)
        sender.send(attempt(compute))

    child = context.Process(target=run)
    child.start()
    sender.close()
    try:
        result = receiver.recv() if receiver.poll(MAX_PROCESS_S) else (None, "it takes too long")
    except (EOFError, OSError):  # it died, perhaps while it sent the result
        result = None
    child.kill()
    child.join()
    return result or (None, f"its process ended with code {child.exitcode}; a negative one is a signal")


def own_memory_mb() -> float:
    """Returns this process's anonymous memory in MB, without free heap memory; 0 if unknown."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        status = Path("/proc/self/status").read_text()
    except (AttributeError, OSError):  # no glibc or no Linux
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if "RssAnon" in line), 0.0)
