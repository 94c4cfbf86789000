"""The choice between fp32 and int8 on a CPU."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from fastapi_onnx import cuda
from fastapi_onnx.backend import OnnxBackend
from serving.backends import precision as precision_module
from serving.backends import precision_check
from serving.backends.precision import Infer, chosen_precision, trial, wanted_device
from serving.backends.shared_choice import shared_choice
from serving.description import Int8Verdict
from serving.errors import ConfigurationError
from serving.model import Model
from serving.settings import Settings
from serving.tasks.image_classification import compute_logits

FILE = "model_quantized.onnx"
IMAGES = precision_check.sample_images((8, 8))


def computing(shift: float = 0.0, seconds: float = 0.0) -> Infer:
    """Returns a network of two classes; `shift` is added to the first one's logit."""

    def infer(batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        time.sleep(seconds)
        logits = np.zeros((len(batch), 2), np.float32)
        logits[:, 0] = batch.mean((1, 2, 3)) / 255 + shift
        return logits

    return infer


def breaking(_: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Fails as a library does whose kernel is missing."""
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize(
    ("quantised", "precision", "reason"),
    [
        (computing(0.01), "int8", "it is fit, and faster"),
        (computing(0.5), "fp32", "int8 differs from fp32 by 0.1"),
        (computing(float("nan")), "fp32", "int8 differs from fp32 by 1.000"),
        (computing(0.01, 0.004), "fp32", "int8 is not faster"),
        (breaking, "fp32", "int8 cannot be used: no such kernel"),
    ],
    ids=["good", "other answers", "not finite", "slow", "broken"],
)
def test_int8_is_taken_where_it_agrees_and_is_faster(
    quantised: Infer, precision: str, reason: str
) -> None:
    networks = {"fp32": computing(seconds=0.002), "int8": quantised}
    chosen, why = trial(networks.__getitem__, IMAGES, expected_difference=0.0)
    assert (chosen, why.startswith(reason)) == (precision, True), why


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
        ({"fit": False, "reason": "too bad"}, True, "auto", "fp32", f"{FILE} is not fit: too bad"),
        ({"fit": False, "reason": "too bad"}, True, "int8", "int8", "SERVING_PRECISION=int8"),
        (None, False, "auto", "fp32", f"model.json does not say whether {FILE} is fit"),
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
    monkeypatch.setattr(precision_module, "trial", lambda *_: ("int8", "as tried"))
    settings = Settings.model_validate({"device": "cpu", "precision": setting})
    backend = OnnxBackend()
    info = backend.load(model_with(tmp_path, verdict, listed), settings)
    assert (info.precision, info.precision_reason) == (precision, reason)
    assert compute_logits(backend, precision_check.sample_images((224, 224))).shape == (8, 11)


def test_without_an_int8_file_auto_is_fp32_and_int8_is_refused(tmp_path: Path) -> None:
    model = model_with(tmp_path, None, listed=False)
    (tmp_path / "1" / FILE).unlink()
    info = OnnxBackend().load(model, Settings(device="cpu"))
    assert (info.precision, info.precision_reason) == ("fp32", f"the model has no {FILE}")
    with pytest.raises(ConfigurationError, match=f"has no {FILE}"):
        OnnxBackend().load(model, Settings(device="cpu", precision="int8"))


def test_half_precision_needs_a_gpu_and_an_int8_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    model = model_with(tmp_path, {})
    with pytest.raises(ConfigurationError, match="SERVING_PRECISION=fp16 needs a GPU"):
        chosen_precision(model, FILE, Settings(precision="fp16"), None, computing)  # type: ignore[arg-type]
    (tmp_path / "1" / FILE).unlink()
    (tmp_path / "1" / FILE).write_bytes(b"not what model.json describes")
    info = OnnxBackend().load(model, Settings(device="cpu"))
    assert info.precision == "fp32"
    assert "is not the file that model.json describes" in info.precision_reason


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
    difference = precision_check.mean_difference(answers["fp32"], answers["int8"])
    assert difference == pytest.approx(recorded.sample_difference, abs=precision_check.MAX_EXCESS)


def test_int8_looks_for_no_gpu_and_a_gpu_has_no_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wanted_device(Settings(device="auto", precision="int8")) == "cpu"
    assert wanted_device(Settings(device="auto")) == "auto"
    assert wanted_device(Settings(device="cuda", precision="int8")) == "cuda"
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

    def choose() -> tuple[str, str]:
        asked.append(1)
        time.sleep(0.05)  # another one would come in meanwhile
        return "int8", f"asked {len(asked)} times"

    def ask(_: int) -> tuple[str, str]:
        together.wait()
        return shared_choice(tmp_path, "choice", choose)

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(ask, range(4))) == {("int8", "asked 1 times")}


@pytest.mark.parametrize("place", [lambda _: None, lambda folder: folder / "gone"])
def test_without_a_folder_every_instance_chooses(
    tmp_path: Path, place: Callable[[Path], Path | None]
) -> None:
    answers = iter([("fp32", "first"), ("int8", "second")])
    assert shared_choice(place(tmp_path), "choice", lambda: next(answers)) == ("fp32", "first")
    assert shared_choice(place(tmp_path), "choice", lambda: next(answers)) == ("int8", "second")


def test_a_choice_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "choice").write_text('["int')
    assert shared_choice(tmp_path, "choice", lambda: ("fp32", "again")) == ("fp32", "again")
    assert shared_choice(tmp_path, "choice", lambda: ("int8", "never")) == ("fp32", "again")


def test_what_else_a_verdict_says_is_kept() -> None:
    model = Model.read(Settings().model_dir)
    written = json.loads((model.folder / "model.json").read_text())["int8"]
    assert json.loads(model.description.model_dump_json())["int8"] == written
    assert Int8Verdict(fit=True, reason="", sample_difference=0).model_extra == {}
