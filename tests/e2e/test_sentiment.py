"""The shipped sentiment model: texts as people type them, and the same answers from both backends."""

import pytest
import requests

from smallplates.settings import ROOT
from tests.conftest import BACKENDS, started

ANSWERS = {
    "An absolute masterpiece": ("positive", 0.9775),
    "I LOVE this movie!!! \N{SMILING FACE WITH HEART-SHAPED EYES}": ("positive", 0.9766),
    "soooo good!!": ("positive", 0.9772),
    "this was the worst film ever...": ("negative", 0.9756),
    "waste of time \N{THUMBS DOWN SIGN}": ("negative", 0.9794),
    "The food was cold and nobody said sorry": ("negative", 0.9680),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_texts_as_typed(backend: str) -> None:
    settings = {"SERVING_MODEL_DIR": str(ROOT / "models/sentiment"), "SERVING_MAX_BATCH_SIZE": "2"}
    with started(backend, **settings) as (url, _):
        answers = requests.post(f"{url}/predict", json={"text": [*ANSWERS]}, timeout=60).json()
        alone = requests.post(f"{url}/predict", json={"text": next(iter(ANSWERS))}, timeout=60).json()
    assert [answer["prediction"] for answer in answers] == [label for label, _ in ANSWERS.values()]
    expected = [probability for _, probability in ANSWERS.values()]
    assert [answer["probability"] for answer in answers] == pytest.approx(expected, abs=1e-3)
    assert alone["probability"] == pytest.approx(expected[0], abs=1e-3)
