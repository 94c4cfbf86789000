"""Choice between fp32 and int8 on a CPU; backends make it at load.

`auto` takes int8 where model.json marks the model's int8 file as fit, and where int8, on this processor,
agrees with fp32 and is faster.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serving.backends import precision_check
from serving.backends.shared_choice import shared_choice
from serving.description import Kind
from serving.errors import ConfigurationError
from serving.model import Model
from serving.settings import Settings
from serving.tensors import Array

Infer = Callable[[Array], NDArray[np.float32]]
"""Computes logits [N, classes] of RGB images [N, height, width, 3], or of tokens [N, tokens]."""

MAX_TIME_RATIO = 0.95  # int8 must save this much, as it costs accuracy
ROUNDS, MAX_TRIAL_S = 8, 1.0


def wanted_device(settings: Settings) -> str:
    """Returns the setting `device`, but for `auto` in int8 `cpu`: no GPU computes in int8 here."""
    return "cpu" if (settings.device, settings.precision) == ("auto", "int8") else settings.device


def chosen_precision(
    model: Model,
    file: Kind,
    settings: Settings,
    scratch: Path | None,
    load: Callable[[str], Infer],
) -> tuple[str, str]:
    """Returns `fp32` or `int8`, and the reason in words; the same for all instances of a model.

    `file` is the backend's int8 file; `load` loads the model in a precision, for a trial with
    `precision_check.samples`. Raises ConfigurationError for a precision that a CPU does not have.
    """
    if settings.precision == "fp16":
        raise ConfigurationError("SERVING_PRECISION=fp16 needs a GPU")
    if settings.precision != "auto":
        return settings.precision, precision_check.FORCED.format(settings.precision)
    if not model.has(file):
        return "fp32", f"the model has no {file}"
    verdict = model.verdict(file)
    if verdict is None:
        return "fp32", f"model.json does not say whether {file} is fit"
    if not verdict.fit:
        return "fp32", f"{file} is not fit: {verdict.reason}"
    difference = verdict.sample_difference
    return shared_choice(
        scratch, f"{file}.choice", lambda: trial(load, precision_check.samples(model), difference)
    )


def trial(load: Callable[[str], Infer], samples: Array, expected_difference: float) -> tuple[str, str]:
    """Computes samples [N, ...] in both precisions; returns the one to use, and the reason.

    Processors compute int8 differently, so that a file that is fit where it was made may not be fit
    here: its answers may differ from those of fp32 about as much as they did there, and not more.
    """
    expected, fp32_s = timed_answers(load("fp32"), samples)
    try:
        actual, int8_s = timed_answers(load("int8"), samples)
    except Exception as error:  # every library has exception types of its own
        return "fp32", f"int8 cannot be used: {error}"
    difference = precision_check.mean_difference(expected, actual)
    times = f"{1000 * int8_s:.1f} instead of {1000 * fp32_s:.1f} ms each"
    if difference > expected_difference + precision_check.MAX_EXCESS:
        return "fp32", (
            f"int8 differs from fp32 by {difference:.3f} on this processor, "
            f"by {expected_difference:.3f} where it was made"
        )
    if int8_s > MAX_TIME_RATIO * fp32_s:
        return "fp32", f"int8 is not faster on this processor: {times}"
    return "int8", f"it is fit, and faster: {times}"


def timed_answers(infer: Infer, samples: Array) -> tuple[NDArray[np.float32], float]:
    """Computes samples one by one, in several rounds.

    Returns their logits [N, classes], and the least number of seconds that one took.
    """
    logits, least = [], float("inf")
    end = time.perf_counter() + MAX_TRIAL_S
    for turn in range(ROUNDS * len(samples)):
        started = time.perf_counter()
        if turn >= len(samples) and started > end:
            break
        logits.append(infer(samples[turn % len(samples), np.newaxis]))
        least = min(least, time.perf_counter() - started)
    return np.concatenate(logits[: len(samples)]), least
