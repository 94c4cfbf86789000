"""Choice of runtime and precision on a CPU: measures a backend's candidates at load.

The first instance measures for all instances. The first candidate is the reference. Another candidate is
chosen if its answers agree with the reference's and if it takes at least a tenth less time than the best
candidate so far.
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

from serving.backends import precision_check
from serving.backends.base import Trial
from serving.backends.precision_check import Samples
from serving.backends.shared_choice import shared_choice
from serving.description import Kind
from serving.errors import ConfigurationError
from serving.logging import logger
from serving.model import Model
from serving.settings import Settings
from serving.system.pdeathsig import die_with_parent
from serving.tensors import Array

Infer = Callable[[Sequence[Array]], list[Array]]
"""Computes outputs [N, ...] from inputs [N, ...]."""

MAX_TIME_RATIO = 0.9
"""Largest accepted time, relative to the best candidate so far."""

QUICK_MS = 1.0
"""Networks that take less time use the reference, since the web process itself takes as long."""

MAX_INT8_DIFFERENCE = 0.05
"""Largest accepted `precision_check.mean_difference` for an int8 file between two runtimes."""

TOGETHER = 4  # items in the timed batch
MIN_ROUNDS, MAX_ROUNDS, MAX_TRIAL_S = 4, 40, 0.2
MAX_TRIALS_S = 300  # after this time the measuring process is killed
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
    """Largest accepted `precision_check.difference` from the reference."""


@dataclass(frozen=True)
class Choice:
    """The runtime and the precision to use."""

    runtime: str
    precision: str
    reason: str
    trials: list[Trial]
    """All candidates with their measurements."""


def wanted_device(settings: Settings) -> str:
    """Returns the setting `device`; but `cpu` for `auto` if the wanted precision needs a CPU."""
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
    most = MAX_INT8_DIFFERENCE
    if not model.has(file):
        refusal = f"the model has no {file}"
    elif settings.precision == "auto":
        verdict = model.verdict(file)
        if verdict is None:
            refusal = f"model.json does not say whether {file} is fit for use"
        elif not verdict.fit:
            refusal = f"{file} is not fit for use: {verdict.reason}"
        elif only_static and verdict.method == "dynamic":
            refusal = refusal or f"{runtime} is not faster in dynamic int8 than in fp32"
        else:
            most = verdict.sample_difference + precision_check.MAX_EXCESS
    return Candidate(runtime, "int8", refusal, most)


def choose(
    candidates: Sequence[Candidate],
    settings: Settings,
    scratch: Path | None,
    load: Callable[[Candidate], Infer],
    samples: Callable[[], Samples],
    memory_mb: float = math.inf,
    apart: bool = False,
) -> Choice:
    """Returns the runtime and precision to use; the same for all instances of a model.

    If the settings name a precision, only candidates in that precision are considered. `load` loads a
    candidate to compute `samples`. Each may take up to `memory_mb` MB of private memory. `apart` means
    to measure in a child process, see `in_a_fork`. Raises ConfigurationError if no candidate is left.
    """
    wanted = settings.precision
    if wanted != "auto":
        candidates = [candidate for candidate in candidates if candidate.precision == wanted]
    usable = [candidate for candidate in candidates if not candidate.refusal]
    refused = [
        Trial(candidate.runtime, candidate.precision, candidate.refusal)
        for candidate in candidates
        if candidate.refusal
    ]
    reasons = "; ".join(dict.fromkeys(trial.reason for trial in refused))
    if not usable:
        if wanted == "fp16":
            raise ConfigurationError("SERVING_PRECISION=fp16 needs a GPU")
        reasons = reasons or "the runtime does not support it"
        raise ConfigurationError(f"SERVING_PRECISION={wanted} cannot be used on a CPU: {reasons}")
    reference = usable[0]
    if len(usable) == 1:
        forced = precision_check.FORCED.format(wanted)
        reason = (reasons or "it is the only one available") if wanted == "auto" else forced
        return Choice(reference.runtime, reference.precision, reason, refused)

    def measure() -> list[dict[str, Any]]:
        return [asdict(trial) for trial in tried(usable, load, samples(), memory_mb)]

    run = partial(in_a_fork, measure, reference) if apart else measure
    trials = [Trial(**fields) for fields in shared_choice(scratch, "choice", run)]
    best = next(trial for trial in trials if trial.chosen)
    reason = best.reason
    if best is trials[0]:
        others = (*trials[1:], *refused)
        reason = "; ".join(f"{other.runtime} in {other.precision}: {other.reason}" for other in others)
    return Choice(best.runtime, best.precision, reason or best.reason, [*trials, *refused])


def tried(
    candidates: Sequence[Candidate],
    load: Callable[[Candidate], Infer],
    samples: Samples,
    memory_mb: float = math.inf,
) -> list[Trial]:
    """Measures the candidates and returns their trials, exactly one of them `chosen`.

    Raises what loading or computing the reference, the first candidate, raises.
    """
    reference, *others = candidates
    expected, its_ms = timed_answers(load(reference), samples)
    its_ms = round(its_ms, 3)
    name = reference.precision
    best = Trial(reference.runtime, name, "the reference", its_ms, chosen=True)
    trials, agreeing = [best], [best]
    for candidate in others:
        trial = Trial(candidate.runtime, candidate.precision, "")
        faster = next((known for known in agreeing if is_faster_for_sure(known, candidate)), None)
        if its_ms < QUICK_MS:
            trial = replace(trial, reason=f"not tried: {name} takes only {its_ms} ms per item")
        elif faster:
            trial = replace(trial, reason=f"not tried: {faster.runtime} is faster in {faster.precision}")
        else:
            trial = measured(candidate, load, samples, expected)
            objection = trial.reason or disagreement(trial, candidate, memory_mb)
            if not objection:
                agreeing.append(trial)
                objection = slowness(trial, best)
            reason = f"it agrees with {name} and is faster: {trial.ms} instead of {its_ms} ms per item"
            trial = replace(trial, reason=objection or reason, chosen=not objection)
        if trial.chosen:
            trials[trials.index(best)] = replace(best, chosen=False)
            best = trial
        trials.append(trial)
    return trials


def is_faster_for_sure(known: Trial, candidate: Candidate) -> bool:
    """Returns whether `known`, which agrees, makes trying `candidate` pointless.

    That is so if its precision is lower and either the runtime is the same or the candidate is in fp32.
    """
    lower = PRECISIONS.index(known.precision) < PRECISIONS.index(candidate.precision)
    return lower and (known.runtime == candidate.runtime or candidate.precision == "fp32")


def measured(
    candidate: Candidate, load: Callable[[Candidate], Infer], samples: Samples, expected: list[Array]
) -> Trial:
    """Returns a trial with the candidate's time, difference and memory, or with the reason it failed."""
    trial = Trial(candidate.runtime, candidate.precision, "")
    compare = "mean" if candidate.precision == "int8" else samples.compare
    before = own_memory_mb()
    try:
        infer = load(candidate)
        answers, ms = timed_answers(infer, samples)
        difference = precision_check.difference(expected, answers, compare)
    except Exception as error:  # every library has its own exception types
        return replace(trial, reason=f"it cannot be used: {' '.join(str(error).split())[:MAX_REASON]}")
    memory = max(0.0, own_memory_mb() - before)
    return replace(trial, ms=round(ms, 3), difference=round(difference, 5), memory_mb=round(memory, 1))


def disagreement(trial: Trial, candidate: Candidate, memory_mb: float) -> str:
    """Returns why a measured candidate is unacceptable regardless of its speed; empty if it is not."""
    if (trial.difference or 0) > candidate.max_difference:
        return f"differs by {trial.difference}; at most {candidate.max_difference:.3f} is accepted"
    if (trial.memory_mb or 0) > memory_mb:
        return f"takes {trial.memory_mb} MB in each worker; at most {memory_mb:.0f} are accepted"
    return ""


def slowness(trial: Trial, best: Trial) -> str:
    """Returns why an acceptable candidate does not beat the best one; empty if it does."""
    if trial.ms is None or best.ms is None or trial.ms > MAX_TIME_RATIO * best.ms:
        return f"less than 10 % faster: {trial.ms} instead of {best.ms} ms per item"
    return ""


def timed_answers(infer: Infer, samples: Samples) -> tuple[list[Array], float]:
    """Computes the samples one by one, or in batches of the network's fixed size.

    Returns the outputs [N, ...], and the milliseconds per item over a single item and a batch, each the
    shortest time of several rounds.
    """

    def part(first: int, count: int) -> list[Array]:
        return [array[first : first + count] for array in samples.inputs]

    alone = samples.batch_size or 1
    starts = range(0, len(samples.inputs[0]), alone)
    answers = [infer(part(first, alone)) for first in starts]
    least = dict.fromkeys({alone, samples.batch_size or TOGETHER}, math.inf)
    end = time.perf_counter() + MAX_TRIAL_S
    for turn in range(MAX_ROUNDS):
        for size in least:
            batch = part(0, size)
            started = time.perf_counter()
            infer(batch)
            least[size] = min(least[size], time.perf_counter() - started)
        if turn + 1 >= MIN_ROUNDS and time.perf_counter() > end:
            break
    outputs = [np.concatenate(output) for output in zip(*answers, strict=True)]
    return outputs, 1000 * sum(least.values()) / sum(least)


def in_a_fork(measure: Callable[[], list[dict[str, Any]]], reference: Candidate) -> list[dict[str, Any]]:
    """Runs `measure` in a child process, so that loaded libraries and crashes do not affect this one.

    If the child dies early, the reference is chosen. The parent must not have computed anything yet,
    because the child would lack the libraries' threads. Raises ConfigurationError if `measure` does.
    """
    context, parent = get_context("fork"), os.getpid()
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        die_with_parent(parent)
        try:
            sender.send(measure())
        except ConfigurationError as error:
            sender.send(error)
        except Exception as error:  # the reference failed; loading it again will show why
            logger().warning("the ways to compute the model cannot be compared", reason=str(error))

    child = context.Process(target=run)
    child.start()
    sender.close()
    try:
        result = receiver.recv() if receiver.poll(MAX_TRIALS_S) else None
    except EOFError:
        result = None
    child.kill()
    child.join()
    if isinstance(result, ConfigurationError):
        raise result
    reason = "the comparison with other ways ended early"
    return result or [asdict(Trial(reference.runtime, reference.precision, reason, chosen=True))]


def own_memory_mb() -> float:
    """Returns this process's anonymous memory in MB, without free heap memory; 0 if unknown."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        status = Path("/proc/self/status").read_text()
    except (AttributeError, OSError):  # no glibc or no Linux
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if "RssAnon" in line), 0.0)
