"""The code that runs inside Triton's Python backend, with a stand-in for the backend."""

import base64
import importlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from fastapi_onnx.backend import OnnxBackend
from smallplates.export.triton.build import build
from smallplates.models.folder import Model
from smallplates.models.scores import best
from smallplates.settings import Settings
from smallplates.tasks.image.decode import ImageDecoder
from smallplates.tasks.image_classification import compute_logits
from tests import pictures
from tests.fake import triton_backend as backend
from tests.fake.triton_backend import Request
from tests.triton_answers import check_same

SETTINGS = Settings(device="cpu", precision="fp32", max_image_pixels=1_000_000)
PHOTOS = [pictures.jpeg(), pictures.rotated(6), pictures.encode(pictures.plate(90, 200), "PNG")]


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")


@pytest.fixture(
    scope="module", params=["onnx", pytest.param("pt", marks=[pytest.mark.slow, needs_torch])]
)
def model(  # TritonPythonModel, imported below
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Any:
    folder = tmp_path_factory.mktemp("triton")
    build(folder, SETTINGS, request.param)
    version = folder / "food_classifier" / "1"
    assert (version / f"model.{request.param}").exists()
    return started(folder / "food_classifier")


def started(home: Path, **names: str) -> Any:
    """An instance, as the backend starts it; `names` replaces names in its configuration."""
    text = (home / "config.pbtxt").read_text()
    for known, other in names.items():
        text = text.replace(f'"{known}"', f'"{other}"')
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", backend)
        made = importlib.import_module("smallplates.export.triton.photo_model").TritonPythonModel()
    text = json_format.MessageToJson(config, preserving_proto_field_name=True)
    made.initialize({"model_config": text, "model_repository": str(home), "model_version": "1"})
    return made


def test_other_names_of_its_tensors(tmp_path: Path) -> None:
    build(tmp_path, SETTINGS)
    model = started(tmp_path / "food_classifier", INPUT_IMAGE="IMAGE", FOOD_LABEL="LABEL")
    (response,) = model.execute([Request(PHOTOS[:1], column="IMAGE")])
    assert [tensor.name for tensor in response.output_tensors] == ["LABEL", "PROBABILITY"]


def test_classes_that_do_not_exclude_each_other(tmp_path: Path, expected: Any) -> None:
    build(tmp_path, SETTINGS)
    config = tmp_path / "food_classifier" / "config.pbtxt"
    text = config.read_text().replace(r"\"mean\":", r"\"activation\":\"sigmoid\",\"mean\":")
    config.write_text(text)
    (rows,) = answer(started(config.parent).execute([Request(PHOTOS[:1], {"top_k": 11})])[0])
    odds = [p / (1 - p) for _, p in rows]
    total = sum(odds)
    check_same([(label, each / total) for (label, _), each in zip(rows, odds, strict=True)], expected[0])


@pytest.fixture(scope="module")
def expected() -> list[list[tuple[str, float]]]:
    """All classes of each photo with their probabilities, as the service computes them."""
    served = Model.read(SETTINGS.model_dir)
    network = OnnxBackend()
    network.load(served, SETTINGS)
    decoder = ImageDecoder(served.description.pipeline, SETTINGS.max_image_pixels)
    pixels = np.stack([decoder.decode(photo) for photo in PHOTOS])
    rows = [best(served.labels, row, 11) for row in compute_logits(network, pixels)]
    return [[(score["label"], score["probability"]) for score in row] for row in rows]


def answer(response: Any) -> list[list[tuple[str, float]]]:
    assert response.error is None, response.error
    labels, probabilities = (tensor.as_numpy() for tensor in response.output_tensors)
    assert [tensor.name for tensor in response.output_tensors] == ["FOOD_LABEL", "PROBABILITY"]
    assert (labels.dtype, probabilities.dtype) == (np.dtype(object), np.dtype(np.float32))
    assert labels.shape == probabilities.shape
    pairs = zip(labels.tolist(), probabilities.tolist(), strict=True)
    return [[(a.decode(), b) for a, b in zip(*pair, strict=True)] for pair in pairs]


def test_several_requests_are_one_batch(model: Any, expected: Any) -> None:
    requests = [Request(PHOTOS[:2]), Request([base64.b64encode(PHOTOS[2])], {"top_k": 5})]
    first, second = (answer(response) for response in model.execute(requests))
    assert [len(row) for row in (*first, *second)] == [1, 1, 5]
    for actual, wanted in zip((*first, *second), expected, strict=True):
        check_same(actual, wanted[: len(actual)])


def test_more_classes_than_there_are(model: Any, expected: Any) -> None:
    (actual,) = answer(model.execute([Request(PHOTOS[:1], {"top_k": 99})])[0])
    check_same(actual, expected[0])


@pytest.mark.parametrize(
    ("request_", "words", "code"),
    [
        (Request([pictures.truncated("PNG")()]), "the image cannot be read", "invalid"),
        (Request([b"no picture!"]), "not a JPEG", "invalid"),
        (Request([b""]), "the image is empty", "invalid"),
        (Request([b"AAA"]), "not valid base64", "invalid"),
        (Request([PHOTOS[0], b"no picture!"]), "element 1: not a JPEG", "invalid"),
        (Request([pictures.bomb()]), "at most 1000000 are accepted", "invalid"),
        (Request(PHOTOS[:1], {"top_k": 0}), "top_k must be", "invalid"),
        (Request(PHOTOS[:1], {"top_k": True}), "top_k must be", "invalid"),
        (Request(PHOTOS[:1], {"top_k": "5"}), "top_k must be", "invalid"),
        (Request(PHOTOS[:1], cancelled=True), "the client has gone", "cancelled"),
    ],
    ids=str,
)
def test_a_bad_request_spoils_no_other(
    model: Any, expected: Any, request_: Request, words: str, code: str
) -> None:
    before, bad, after = model.execute([Request(PHOTOS[:1]), request_, Request(PHOTOS[1:2])])
    assert words in str(bad.error)
    assert bad.error.code == code
    assert bad.output_tensors == []
    check_same(answer(before)[0], expected[0][:1])
    check_same(answer(after)[0], expected[1][:1])


@pytest.mark.parametrize("step", ["decode", "logits", "answer"])
def test_a_failure_inside_is_logged_and_not_told(
    model: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(model, step, fail)
    (response,) = model.execute([Request(PHOTOS[:1])])
    assert (str(response.error), response.error.code) == ("the server failed", "internal")
    assert "a secret" in backend.logged[-1]


def test_the_description_is_what_the_service_reads(model: Any) -> None:
    description = json.loads(Path(SETTINGS.model_dir, "model.json").read_text())
    assert model.labels == description["labels"]
