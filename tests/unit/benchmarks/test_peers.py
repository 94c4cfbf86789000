"""The servers beside this one compute the same answers, in plain PyTorch, too."""

import numpy as np
import pytest

from benchmarks.peers.common import Classify
from benchmarks.peers.eager import Eager
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
