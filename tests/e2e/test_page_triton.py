"""The page with `UI_API_PROTOCOL=triton` in front of this service, which speaks that protocol, too."""

from collections.abc import Iterator
from contextlib import closing

import pytest
import requests
from flask.testing import FlaskClient

from flask_app.app import create_app
from flask_app.samples import SAMPLES, Sample
from flask_app.settings import Settings


@pytest.fixture(scope="module")
def page(onnx_url: str) -> Iterator[FlaskClient]:
    app = create_app(Settings(api_url=onnx_url, api_protocol="triton"))
    with closing(app.extensions["api"]):
        yield app.test_client()


@pytest.mark.parametrize("model", ["", "?model=food_classifier_onnx"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.key)
def test_the_answer_is_that_of_predict(
    page: FlaskClient, onnx_url: str, sample: Sample, model: str
) -> None:
    """The page prepares the photo itself for the model that takes tensors."""
    photo = sample.read().content
    answer = page.post(f"/classify{model}", data=photo, headers={"Content-Type": "image/jpeg"})
    assert answer.status_code == 200, answer.text
    top = answer.get_json()["top"]
    wanted = requests.post(f"{onnx_url}/predict?top_k=5", data=photo, timeout=60).json()["top"]
    assert [candidate["label"] for candidate in top] == [candidate["label"] for candidate in wanted]
    probabilities = [candidate["probability"] for candidate in wanted]
    assert [candidate["probability"] for candidate in top] == pytest.approx(
        probabilities,
        abs=0.03 if model else 1e-4,  # other pixels, and maybe another precision
    )
    assert len(answer.get_json()["page"]["bars"]) == 5
    assert "infer;dur=" in answer.headers["Server-Timing"]


def test_the_page_knows_the_model_and_bad_photos(page: FlaskClient, onnx_url: str) -> None:
    status = page.get("/status").get_json()
    model = requests.get(f"{onnx_url}/model", timeout=60).json()
    assert (status["state"], status["model"]["labels"]) == ("ready", model["labels"])
    assert status["model"]["title"] == "food11 1"
    assert (status["model"]["backend"], status["model"]["device"]) == ("onnxruntime", "cpu")
    assert page.get("/test").status_code == 200
    names = [model["name"] for model in status["models"]]
    assert names == ["food11", "food_classifier_onnx"]
    assert page.get("/test?model=food_classifier_onnx").status_code == 200
    refused = page.post("/classify?model=food_classifier_onnx", data=b"no photo!")
    assert (refused.status_code, refused.get_json()["code"]) == (415, "unsupported_image")
    refused = page.post("/classify", data=b"no photo!", headers={"Content-Type": "image/jpeg"})
    assert (refused.status_code, refused.get_json()["code"]) == (400, "invalid_image")
    assert refused.get_json()["detail"].startswith("not a JPEG, PNG, WebP, GIF, BMP")
