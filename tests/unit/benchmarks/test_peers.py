"""The servers beside this one compute the same answers, in plain PyTorch, too."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks import text_model
from benchmarks.peers.common import Classify, graph
from benchmarks.peers.eager import Eager
from benchmarks.peers.text import ClassifyTexts
from fastapi_onnx.openvino_session import openvino_objection
from smallplates.models.folder import Model
from smallplates.settings import ROOT
from tests import pictures

pytestmark = [pytest.mark.slow, pytest.mark.torch]

FOOD = str(ROOT / "models" / "food11")


@pytest.mark.parametrize("size", [(320, 240), (240, 320), (200, 200)])
def test_the_peers_see_the_same_picture(size: tuple[int, int]) -> None:
    photo = pictures.jpeg(*size)
    shared = Classify(FOOD, "shared")
    expected = shared.image_file(photo)
    for peer in (Classify(FOOD, "plain"), Classify(FOOD, "plain", threads=0), Eager(FOOD)):
        answer = peer.image_file(photo)
        assert answer["prediction"] == expected["prediction"]
        assert answer["probability"] == pytest.approx(expected["probability"], abs=0.03)
    logits = Classify(FOOD, "plain").infer_plain(photo)
    assert np.abs(logits - shared.infer_shared(photo)).max() < 0.2


def test_a_peer_loads_the_graph_of_its_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quantised graph is the only one in this folder."""
    shutil.copy(Path(FOOD, "model.json"), tmp_path)
    quantised = graph(Model.read(tmp_path), "int8")
    quantised.parent.mkdir()
    quantised.symlink_to(graph(Model.read(Path(FOOD)), "fp32"))
    photo = pictures.jpeg()
    expected = Classify(FOOD, "plain").image_file(photo)
    assert Classify(str(tmp_path), "plain", precision="int8").image_file(photo) == expected
    monkeypatch.setenv("PEER_PRECISION", "int8")
    assert Classify(str(tmp_path), "plain").image_file(photo) == expected


@pytest.mark.skipif(bool(openvino_objection("bf16")), reason="no bf16 here")
def test_peers_are_lent_the_same_bf16(tmp_path: Path) -> None:
    photo = pictures.jpeg()
    expected = Classify(FOOD, "plain").image_file(photo)
    for pipeline in ("plain", "shared"):
        answer = Classify(FOOD, pipeline, precision="bf16").image_file(photo)
        assert answer["prediction"] == expected["prediction"]
        assert answer["probability"] == pytest.approx(expected["probability"], abs=0.03)
    text_model.make(tmp_path, width=48, layers=1)
    exact, lent = (ClassifyTexts(str(tmp_path), precision) for precision in ("fp32", "bf16"))
    assert lent.session.length_step > exact.session.length_step
    texts = text_model.texts(3)
    for wanted, answer in zip(exact(texts), lent(texts), strict=True):
        assert answer["probability"] == pytest.approx(wanted["probability"], abs=0.02)
