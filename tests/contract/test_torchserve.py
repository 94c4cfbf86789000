"""TorchServe's inference API, as its clients use it, on both backends."""

import base64

import pytest
import requests

from tests import pictures

PHOTO = pictures.jpeg()
URL = "/predictions/food_classifier"


def check_error(response: requests.Response, status: int, kind: str) -> None:
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["code", "type", "message"]
    assert (body["code"], body["type"]) == (status, kind)


def test_every_way_in_gives_the_five_best(backend_url: str) -> None:
    native = requests.post(f"{backend_url}/predict?top_k=5", data=PHOTO, timeout=60).json()["top"]
    wanted = {score["label"]: score["probability"] for score in native}
    url = backend_url + URL
    answers = [
        requests.post(url, data=PHOTO, timeout=60),
        requests.put(url, data=PHOTO, timeout=60),
        requests.post(f"{url}/1", data=PHOTO, timeout=60),
        requests.post(f"{url}/1.0", data=PHOTO, timeout=60),
        requests.post(url, data=PHOTO, headers={"Content-Type": "image/jpeg"}, timeout=60),
        requests.post(
            url, data=PHOTO, headers={"Content-Type": "application/x-www-form-urlencoded"}, timeout=30
        ),
        requests.post(url, files={"data": ("photo.jpg", PHOTO)}, timeout=60),
        requests.post(url, files={"data": (None, PHOTO)}, timeout=60),  # as perf_analyzer does
        requests.post(url, json={"image": base64.b64encode(PHOTO).decode()}, timeout=60),
        requests.post(f"{backend_url}/predictions/food11", data=PHOTO, timeout=60),
    ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert list(answer.json()) == list(wanted)
        assert list(answer.json().values()) == pytest.approx(list(wanted.values()), abs=1e-4)


def test_a_form_that_repeats_data_gets_a_list(backend_url: str) -> None:
    photos = [make() for make in pictures.READABLE.values()][:5]
    wanted = [requests.post(backend_url + URL, data=photo, timeout=60).json() for photo in photos]
    files = [("data", (None if index else "photo", photo)) for index, photo in enumerate(photos)]
    answer = requests.post(backend_url + URL, files=files, timeout=60)
    assert answer.status_code == 200, answer.text
    for scores, single in zip(answer.json(), wanted, strict=True):
        assert list(scores) == list(single)
        assert list(scores.values()) == pytest.approx(list(single.values()), abs=1e-4)
    files[3] = ("data", ("photo", b"no picture"))
    refused = requests.post(backend_url + URL, files=files, timeout=60)
    check_error(refused, 400, "BadRequestException")
    assert refused.json()["message"].startswith("element 3: ")


def test_ping_and_models(backend_url: str) -> None:
    assert requests.get(f"{backend_url}/ping", timeout=60).json() == {"status": "Healthy"}
    models = requests.get(f"{backend_url}/models", timeout=60).json()["models"]
    assert "food_classifier" in {model["modelName"] for model in models}
    (model,) = requests.get(f"{backend_url}/models/food_classifier", timeout=60).json()
    assert model["modelVersion"] == "1"
    assert {worker["status"] for worker in model["workers"]} == {"READY"}
    for version in ("all", "1", "1.0"):
        answer = requests.get(f"{backend_url}/models/food_classifier/{version}", timeout=60)
        assert [version["modelVersion"] for version in answer.json()] == ["1"]


def test_errors(backend_url: str) -> None:
    def ask(path: str, **options: object) -> requests.Response:
        return requests.post(backend_url + path, timeout=60, **options)  # type: ignore[arg-type]

    check_error(ask("/predictions/nothing", data=PHOTO), 404, "ResourceNotFoundException")
    check_error(ask(f"{URL}/2", data=PHOTO), 404, "ResourceNotFoundException")
    check_error(ask(f"{URL}/2.0", data=PHOTO), 404, "ResourceNotFoundException")
    assert ask("/explanations/food_classifier", data=PHOTO).status_code == 404
    check_error(ask("/predictions/food_classifier_onnx", data=PHOTO), 400, "BadRequestException")
    check_error(ask(URL, files={"other": ("a", PHOTO)}), 400, "BadRequestException")
    check_error(ask(URL, data=bytes(21 * 2**20)), 413, "RequestEntityTooLargeException")
    check_error(
        ask(URL, data=PHOTO, headers={"Content-Encoding": "br"}), 415, "UnsupportedMediaTypeException"
    )
    check_error(ask("/ping"), 405, "MethodNotAllowedException")
    check_error(
        requests.get(f"{backend_url}/models/nothing", timeout=60), 404, "ResourceNotFoundException"
    )
