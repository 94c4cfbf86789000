"""The page with `UI_API_PROTOCOL=triton` in front of this service, which speaks that protocol, too."""

from collections.abc import Iterator

import pytest
import requests

from flask_app.samples import SAMPLES, Sample
from tests import servers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page_url(onnx_url: str) -> Iterator[str]:
    """The page's address."""
    url = f"http://127.0.0.1:{(port := servers.free_port())}"
    env = {"UI_PORT": str(port), "UI_API_URL": onnx_url, "UI_API_PROTOCOL": "triton"}
    with servers.running(["flask_app"], f"{url}/healthz", env):
        yield url


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.key)
def test_the_answer_is_that_of_predict(page_url: str, onnx_url: str, sample: Sample) -> None:
    photo = sample.read().content
    headers = {"Content-Type": "image/jpeg"}
    answer = requests.post(f"{page_url}/classify", data=photo, headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    wanted = requests.post(f"{onnx_url}/predict?top_k=5", data=photo, timeout=30).json()
    assert [candidate["label"] for candidate in body["top"]] == [
        candidate["label"] for candidate in wanted["top"]
    ]
    probabilities = [candidate["probability"] for candidate in wanted["top"]]
    assert [candidate["probability"] for candidate in body["top"]] == pytest.approx(
        probabilities, abs=1e-4
    )
    assert len(body["page"]["bars"]) == 5
    assert "infer;dur=" in answer.headers["Server-Timing"]


def test_the_page_knows_the_model(page_url: str, onnx_url: str) -> None:
    model = requests.get(f"{onnx_url}/model", timeout=10).json()
    status = requests.get(f"{page_url}/status", timeout=10).json()
    assert status["state"] == "ready"
    assert status["model"]["labels"] == model["labels"]
    assert status["model"]["title"] == "food11 1"
    assert (status["model"]["backend"], status["model"]["device"]) == ("onnxruntime", "cpu")
    assert requests.get(f"{page_url}/test", timeout=30).status_code == 200


def test_a_bad_photo(page_url: str) -> None:
    answer = requests.post(f"{page_url}/classify", files={"photo": ("x.jpg", b"no photo!")}, timeout=30)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_image")
    assert answer.json()["detail"].startswith("not a JPEG, PNG, WebP, GIF, BMP")
