"""The choice of a runtime and a precision on a CPU."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest
from structlog.testing import capture_logs

from fastapi_onnx import cuda
from fastapi_onnx.backend import OnnxBackend
from smallplates.engine.backend import Trial
from smallplates.errors import ConfigurationError
from smallplates.models.comparison import probabilities
from smallplates.models.description import Int8Verdict
from smallplates.models.folder import Model
from smallplates.models.tensors import Array
from smallplates.settings import Settings
from smallplates.tasks.image_classification import compute_logits
from smallplates.worker import choice, precision_check
from smallplates.worker.choice import Candidate, device_for, measure
from smallplates.worker.precision_check import Infer, Samples
from smallplates.worker.shared_choice import shared_choice

FILE = "model_quantized.onnx"
IMAGES = precision_check.sample_images((8, 8))
CLOCK = SimpleNamespace(now=0.0)
"""Moved by the networks of `computing` only, however busy the machine is."""


def computing(shift: float = 0.0, seconds: float = 0.0) -> Infer:
    """Returns a network of two classes; `shift` is added to the first one's logit."""

    def infer(inputs: Sequence[Array]) -> list[Array]:
        (batch,) = inputs
        CLOCK.now += seconds * len(batch)
        logits = np.zeros((len(batch), 2), np.float32)
        logits[:, 0] = batch.mean((1, 2, 3)) / 255 + shift
        return [logits]

    return infer


def breaking(_: Sequence[Array]) -> list[Array]:
    """Fails as a library does whose kernel is missing."""
    raise RuntimeError("no such kernel")


def compare(reference: Infer, *others: tuple[Candidate, Infer], memory_mb: float = 1e6) -> list[Trial]:
    fp32 = Candidate("a", "fp32")
    networks = dict([(fp32, reference), *others])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "time", SimpleNamespace(perf_counter=lambda: CLOCK.now))
        return measure(
            list(networks),
            networks.__getitem__,
            lambda: Samples(lambda seed: [np.roll(IMAGES, seed)], probabilities),
            memory_mb,
        )


@pytest.mark.parametrize(
    ("other", "is_chosen", "reason"),
    [
        (computing(0.01), True, "it agrees with fp32 and is faster"),
        (computing(0.5), False, "differs by 0.1"),
        (computing(float("nan")), False, "differs by "),
        (computing(0.01, 0.004), False, "less than 10 % faster"),
        (breaking, False, "it cannot be used: no such kernel"),
    ],
    ids=["good", "other answers", "not finite", "slow", "broken"],
)
@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_what_agrees_and_is_faster_is_taken(
    other: Infer, is_chosen: bool, reason: str, precision: str
) -> None:
    candidate = Candidate("b", precision, max_difference=0.02)
    reference, trial = compare(computing(seconds=0.002), (candidate, other))
    assert (reference.chosen, trial.chosen) == (not is_chosen, is_chosen)
    assert trial.reason.startswith(reason)


def test_a_network_that_is_quick_anyway_is_left_to_the_reference() -> None:
    reference, trial = compare(computing(seconds=0.0005), (Candidate("b", "bf16"), breaking))
    assert reference.chosen
    assert "not tried: fp32 takes only 0." in trial.reason


def test_a_higher_precision_is_not_tried_where_a_lower_one_is_taken() -> None:
    quick = computing(seconds=0.0005)
    *_, lower, same_runtime, exact = compare(
        computing(seconds=0.002),
        (Candidate("b", "int8"), quick),
        (Candidate("b", "bf16"), breaking),
        (Candidate("c", "fp32"), breaking),
    )
    assert lower.chosen
    for trial in (same_runtime, exact):
        assert trial.reason == "not tried: b is faster in int8"


def test_memory_is_bounded() -> None:
    kept: list[Array] = []

    def greedy(inputs: Sequence[Array]) -> list[Array]:
        if not kept:
            kept.append(np.ones(50_000_000, np.uint8))
        return computing()(inputs)

    candidate = Candidate("b", "bf16")
    slow = computing(seconds=0.002)
    assert "MB in each worker; at most 10" in compare(slow, (candidate, greedy), memory_mb=10)[1].reason
    kept.clear()
    assert compare(slow, (candidate, greedy), memory_mb=100)[1].chosen


def model_with(folder: Path, verdict: dict[str, object] | None, listed: bool = True) -> Model:
    """Returns the shipped model with an int8 file that has this verdict."""
    shipped = Model.read(Settings().model_dir)
    (folder / "1").mkdir()
    for kind in ("model.onnx", FILE):
        (folder / "1" / kind).symlink_to(shipped.folder / "1" / kind)
    files = {
        name: digest for name, digest in shipped.description.files.items() if name.endswith(".onnx")
    }
    if not listed:
        del files[f"1/{FILE}"]
    known = shipped.description.int8[f"1/{FILE}"]
    verdicts = {} if verdict is None else {f"1/{FILE}": known.model_copy(update=verdict)}
    return Model(folder, shipped.description.model_copy(update={"files": files, "int8": verdicts}))


@pytest.mark.parametrize(
    ("verdict", "listed", "setting", "precision", "reason"),
    [
        ({}, True, "auto", "int8", "as tried"),
        ({}, True, "fp32", "fp32", "SERVING_PRECISION=fp32"),
        ({}, True, "int8", "int8", "SERVING_PRECISION=int8"),
        (
            {"fit": False, "reason": "too bad"},
            True,
            "auto",
            "fp32",
            f"{FILE} is not fit for use: too bad",
        ),
        ({"fit": False, "reason": "too bad"}, True, "int8", "int8", "SERVING_PRECISION=int8"),
        (None, False, "auto", "fp32", f"model.json does not say whether {FILE} is fit for use"),
        (None, False, "int8", "int8", "SERVING_PRECISION=int8"),
    ],
)
def test_the_setting_and_the_verdict_decide(
    tmp_path: Path,
    verdict: dict[str, object] | None,
    listed: bool,
    setting: str,
    precision: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def as_tried(candidates: Sequence[Candidate], *_: object) -> list[Trial]:
        reports = [Trial(candidate.runtime, candidate.precision, "as tried") for candidate in candidates]
        return [reports[0], replace(reports[1], chosen=True)]

    monkeypatch.setattr(choice, "measure", as_tried)
    values = {"device": "cpu", "precision": setting, "cpu_runtime": "onnxruntime"}
    settings = Settings.model_validate(values)
    backend = OnnxBackend()
    info = backend.load(model_with(tmp_path, verdict, listed), settings)
    assert (info.precision, info.precision_reason) == (precision, reason)
    assert compute_logits(backend, precision_check.sample_images((224, 224))).shape == (8, 11)


@pytest.mark.parametrize(
    ("values", "warnings"),
    [
        ({"precision": "int8", "cpu_runtime": "onnxruntime"}, [("onnxruntime", "int8")]),
        ({"precision": "fp32", "cpu_runtime": "onnxruntime"}, []),
    ],
)
def test_one_instance_warns_of_answers_that_are_not_compared(
    tmp_path: Path, values: dict[str, str], warnings: list[tuple[str, str]]
) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    settings = Settings.model_validate({"device": "cpu", **values})
    model = model_with(tmp_path, {})
    with capture_logs() as logs:
        for _ in range(2):
            OnnxBackend().load(model, settings, scratch)
    found = [line for line in logs if line["event"] == "answers are not compared with the reference"]
    assert [(line["runtime"], line["precision"]) for line in found] == warnings


def test_without_an_int8_file_auto_is_fp32_and_int8_is_refused(tmp_path: Path) -> None:
    model = model_with(tmp_path, None, listed=False)
    (tmp_path / "1" / FILE).unlink()
    info = OnnxBackend().load(model, Settings(device="cpu", cpu_runtime="onnxruntime"))
    assert (info.precision, info.precision_reason) == ("fp32", f"the model has no {FILE}")
    with pytest.raises(ConfigurationError, match=f"has no {FILE}"):
        OnnxBackend().load(model, Settings(device="cpu", precision="int8"))


def test_half_precision_needs_a_gpu_and_an_int8_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    model = model_with(tmp_path, {})
    with pytest.raises(ConfigurationError, match="SERVING_PRECISION=fp16 needs a GPU"):
        OnnxBackend().load(model, Settings(device="cpu", precision="fp16"))
    (tmp_path / "1" / FILE).unlink()
    (tmp_path / "1" / FILE).write_bytes(b"not what model.json describes")
    info = OnnxBackend().load(model, Settings(device="cpu", cpu_runtime="onnxruntime"))
    assert info.precision == "fp32"
    assert "does not match its SHA-256 in model.json" in info.precision_reason


def test_the_shipped_int8_file_answers_as_fp32_does_and_makes_no_class_of_nan() -> None:
    model = Model.read(Settings().model_dir)
    answers = {}
    images = precision_check.sample_images((224, 224))
    tensors = np.zeros((3, 3, 224, 224), np.float32)
    tensors[1, 0, 0, 0], tensors[2, 2, 5, 5] = np.nan, np.inf
    for precision in ("fp32", "int8"):
        backend = OnnxBackend()
        backend.load(model, Settings.model_validate({"device": "cpu", "precision": precision}))
        answers[precision] = compute_logits(backend, images)
        finite = np.isfinite(compute_logits(backend, tensors)).all(axis=1)
        assert finite.tolist() == [True, False, False]
    recorded = model.description.int8[f"1/{FILE}"]
    assert recorded.fit
    accuracy = (recorded.model_extra or {})["accuracy"]
    assert accuracy["fp32"] - accuracy["int8"] <= 0.005
    difference = probabilities(answers["fp32"], answers["int8"]).mean
    assert difference == pytest.approx(recorded.sample_difference, abs=precision_check.MAX_EXCESS)


def test_int8_looks_for_no_gpu_and_a_gpu_has_no_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_for(Settings(device="auto", precision="int8")) == "cpu"
    assert device_for(Settings(device="auto")) == "auto"
    assert device_for(Settings(device="cuda", precision="int8")) == "cuda"
    model = Model.read(Settings().model_dir)
    info = OnnxBackend().load(model, Settings(device="auto", precision="int8"))
    assert (info.device, info.fallback) == ("cpu", None)
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(cuda, "Device", lambda _: None)
    with pytest.raises(ConfigurationError, match="SERVING_PRECISION=int8 needs a CPU"):
        OnnxBackend().load(model, Settings(device="cuda", precision="int8"))


def test_one_instance_chooses_for_all(tmp_path: Path) -> None:
    asked: list[int] = []
    together = threading.Barrier(4)

    def choose() -> list[str]:
        asked.append(1)
        time.sleep(0.05)  # another one would come in meanwhile
        return ["int8", f"asked {len(asked)} times"]

    def ask(_: int) -> list[str]:
        together.wait()
        return shared_choice(tmp_path, "choice", choose)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(4))) == 4 * [["int8", "asked 1 times"]]


@pytest.mark.parametrize("place", [lambda _: None, lambda folder: folder / "gone"])
def test_without_a_folder_every_instance_chooses(
    tmp_path: Path, place: Callable[[Path], Path | None]
) -> None:
    answers = iter([("fp32", "first"), ("int8", "second")])
    assert shared_choice(place(tmp_path), "choice", lambda: next(answers)) == ("fp32", "first")
    assert shared_choice(place(tmp_path), "choice", lambda: next(answers)) == ("int8", "second")


def test_a_choice_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "choice").write_text('["int')
    assert shared_choice(tmp_path, "choice", lambda: ["fp32", "again"]) == ["fp32", "again"]
    assert shared_choice(tmp_path, "choice", lambda: ["int8", "never"]) == ["fp32", "again"]


def test_what_else_a_verdict_says_is_kept() -> None:
    model = Model.read(Settings().model_dir)
    written = json.loads((model.folder / "model.json").read_text())["int8"]
    assert json.loads(model.description.model_dump_json())["int8"] == written
    assert Int8Verdict(fit=True, reason="", sample_difference=0).model_extra == {}


def margins(usual: float, last: float, shift: float = 0.0) -> Infer:
    """Returns a network of two classes with these margins; `last` is that of the 31st batch of samples.

    `shift` is added to the probability of the first class there.
    """

    def infer(inputs: Sequence[Array]) -> list[Array]:
        is_last = inputs[0] == 31
        share = (1 + np.where(is_last, last, usual)) / 2 + np.where(is_last, shift, 0)
        return [np.concatenate([np.log(share), np.log(1 - share)], axis=1)]

    return infer


@pytest.mark.parametrize(
    ("usual", "last", "shift", "objection", "share", "count"),
    [
        (0.5, 0.5, 0.019, "", 1, 256),
        (0.5, 0.5, 0.021, "differs by 0.02", 1, 256),
        (0.15, 0.5, 0.014, "", 1, 256),
        (0.15, 0.5, 0.016, "differs by 0.01600; at most 0.01500 is accepted", 1, 256),
        (0.5, 0.03, -0.016, "changes the best class", 31 / 32, 256),
        (0.5, 0.01, -0.016, "", 32 / 33, 264),
        (0.01, 0.01, 0, "0 of 1024 samples", 1, 1024),
    ],
)
def test_a_lower_precision_changes_no_clear_class_of_256_samples(
    usual: float, last: float, shift: float, objection: str, share: float, count: int
) -> None:
    samples = Samples(lambda seed: [np.full((8, 1), float(seed))], probabilities)
    exact, lower = margins(usual, last), margins(usual, last, shift)
    found, _, same, compared = precision_check.agreement(exact, lower, samples)
    assert objection in found
    assert bool(found) == bool(objection)
    assert same == pytest.approx(share, abs=1e-4)
    assert compared == count


def test_bf16_is_refused_for_a_class_that_the_first_samples_do_not_show() -> None:
    def changing(inputs: Sequence[Array]) -> list[Array]:
        (logits,) = computing()(inputs)
        is_first = len(logits) < len(IMAGES) or np.array_equal(inputs[0], IMAGES)
        return [logits if is_first else -logits]

    bf16 = Candidate("b", "bf16", max_difference=0.02)
    (reference, good), (_, bad) = (
        compare(computing(seconds=0.002), (bf16, other)) for other in (computing(), changing)
    )
    assert (good.chosen, good.agreement, good.samples) == (True, 1, 256)
    assert (bad.chosen, bad.samples) == (False, 16)
    assert reference.samples is None


def test_a_slow_network_stays_in_fp32_rather_than_start_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_check, "time", SimpleNamespace(perf_counter=lambda: CLOCK.now))
    bf16 = Candidate("b", "bf16", max_difference=0.02)
    for seconds, is_chosen in ((0.2, True), (0.3, False)):
        _, trial = compare(computing(seconds=seconds), (bf16, computing()))
        assert trial.chosen == is_chosen
    assert "comparing 256 samples takes 77 s" in trial.reason
