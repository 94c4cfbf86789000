"""The shipped question-answering model: the same answers from both backends, and as a dialogue."""

import pytest
import requests

from smallplates.cli.commands import app
from smallplates.settings import ROOT
from tests import command_line
from tests.conftest import BACKENDS, started

CONTEXT = (
    "Marta Lind opened the mill by the river in 1931 and ground oats for the farms around Elmsford. "
    "Her grandson Jonas still uses the old stones, but a small turbine drives them now."
)
ANSWERS = {
    "Who opened the mill?": ("Marta Lind", 0.9885),
    "when was it opened": ("1931", 0.9734),
    "What was ground in the mill?": ("oats", 0.9209),
    "Who uses the old stones?": ("Jonas", 0.9589),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_questions_as_typed(backend: str) -> None:
    settings = {"SERVING_MODEL_DIR": str(ROOT / "models/questions"), "SERVING_PRECISION": "fp32"}
    with started(backend, **settings) as (url, _):
        asked = [{"question": question, "context": CONTEXT} for question in ANSWERS]
        answers = [requests.post(f"{url}/predict", json=each, timeout=60).json() for each in asked]
        typed = "\n".join([CONTEXT, *ANSWERS, ""])
        dialogue = command_line.run(app, "ask", "--question", "--url", url, typed=f"{typed}\n")
    assert [answer["answer"] for answer in answers] == [text for text, _ in ANSWERS.values()]
    scores = [answer["score"] for answer in answers]
    assert scores == pytest.approx([score for _, score in ANSWERS.values()], abs=1e-3)
    assert all(text in dialogue for text, _ in ANSWERS.values())
