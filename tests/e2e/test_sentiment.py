"""The shipped sentiment model: texts as people type them, and the same answers from both backends."""

from typing import Any

import pytest
import requests
from typer.testing import CliRunner

from smallplates.cli.ask import app
from smallplates.settings import ROOT
from tests import servers
from tests.conftest import BACKENDS, started

FORM = "application/x-www-form-urlencoded"
BODIES = [
    ("/predict", b"text=waste+of+time", FORM),
    ("/predict", b'{"text": "waste of time"}', FORM),
    ("/predict", b"\xef\xbb\xbfwaste of time", "text/plain"),
    ("/predict", "waste of time".encode("utf-16-le"), "text/plain; charset=utf-16le"),
    ("/predictions/sentiment", b"data=waste%20of%20time", FORM),
    ("/predictions/sentiment", b"body=waste+of+time", FORM),
    ("/predictions/sentiment", b'{"text": "waste of time"}', FORM),
    ("/predictions/sentiment", b"\xef\xbb\xbfwaste of time", None),
    ("/v1/models/sentiment:predict", b'\xef\xbb\xbf{"instances": ["waste of time"]}', None),
]
"""One text, as clients send it: path, body, content type."""

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
    port = servers.free_port()
    settings = {"SERVING_MODEL_DIR": str(ROOT / "models/sentiment")}
    settings |= {"SERVING_MAX_BATCH_SIZE": "2", "SERVING_TCP_PORT": str(port)}
    with started(backend, **settings) as (url, _):
        answers = requests.post(f"{url}/predict", json={"text": [*ANSWERS]}, timeout=30).json()
        alone = requests.post(f"{url}/predict", json={"text": next(iter(ANSWERS))}, timeout=30).json()
        check_every_body(url, port)
    assert [answer["prediction"] for answer in answers] == [label for label, _ in ANSWERS.values()]
    expected = [probability for _, probability in ANSWERS.values()]
    assert [answer["probability"] for answer in answers] == pytest.approx(expected, abs=1e-3)
    assert alone["probability"] == pytest.approx(expected[0], abs=1e-3)


def check_every_body(url: str, port: int) -> None:
    """Each body in BODIES, and JSON over TCP, is the text: not scored as what encodes it."""
    wanted = requests.post(f"{url}/predict", json={"text": "waste of time"}, timeout=30).json()
    for path, body, kind in BODIES:
        headers = {"Content-Type": kind} if kind else {}
        answer = requests.post(f"{url}{path}", data=body, headers=headers, timeout=30)
        assert answer.status_code == 200, answer.text
        assert probability_of("negative", answer.json()) == pytest.approx(
            wanted["probability"], abs=1e-6
        )
    refused = requests.post(f"{url}/predict", data=b"x", headers={"Content-Type": FORM}, timeout=30)
    assert refused.status_code == 415
    arguments = ["--text", "waste of time", "--url", f"tcp://127.0.0.1:{port}"]
    line = CliRunner().invoke(app, arguments).output
    assert line.startswith(f"waste of time: negative {100 * wanted['probability']:.1f} %")


def probability_of(label: str, answer: Any) -> float:
    """The probability of the label in an answer of any protocol."""
    row = answer.get("predictions", [answer])[0]
    found = row.get("probability", row.get("PROBABILITY", row.get(label)))
    return float(found)
