"""TensorFlow Serving's REST API, as its documentation's clients use it, on both backends."""

import base64
import json
from typing import Any

import numpy as np
import pytest
import requests

from tests import pictures

PHOTO = pictures.jpeg()
ENCODED = base64.b64encode(PHOTO).decode()
PHOTOS, TENSORS = "food_classifier", "food_classifier_onnx"


def post(url: str, body: Any, path: str = f"{PHOTOS}:predict") -> requests.Response:
    """A request; `body` is JSON, or bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body)
    return requests.post(f"{url}/v1/models/{path}", data=data, timeout=60)


def check_error(response: requests.Response, status: int, words: str) -> None:
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    assert words in response.json()["error"]


def test_paths_with_a_version(backend_url: str) -> None:
    for path in ("", "/metadata"):
        whole, of_version = (
            requests.get(f"{backend_url}/v1/models/{TENSORS}{version}{path}", timeout=60)
            for version in ("", "/versions/1")
        )
        assert (whole.status_code, whole.json()) == (200, of_version.json())


@pytest.mark.parametrize("path", [f"{PHOTOS}:predict", f"{PHOTOS}/versions/1:predict", "food11:predict"])
def test_rows_of_photos(backend_url: str, path: str) -> None:
    native = requests.post(f"{backend_url}/predict", data=PHOTO, timeout=60).json()
    for row in (
        {"b64": ENCODED},
        {"INPUT_IMAGE": {"b64": ENCODED}},
        ENCODED,
        {"INPUT_IMAGE": ENCODED},
        {"data": ENCODED},  # as KServe's clients of TorchServe
        {"data": {"b64": ENCODED}},
    ):
        body = {"signature_name": "serving_default", "instances": [row, row]}
        answer = post(backend_url, body, path)
        assert answer.status_code == 200, answer.text
        predictions = answer.json()["predictions"]
        assert [prediction["FOOD_LABEL"] for prediction in predictions] == [native["prediction"]] * 2
        assert predictions[0]["PROBABILITY"] == pytest.approx(native["probability"], abs=1e-5)


def test_columns_of_photos(backend_url: str) -> None:
    native = requests.post(f"{backend_url}/predict", data=PHOTO, timeout=60).json()
    for inputs in ({"INPUT_IMAGE": [{"b64": ENCODED}]}, [{"b64": ENCODED}], {"b64": ENCODED}):
        outputs = post(backend_url, {"inputs": inputs, "signature_name": ""}).json()["outputs"]
        assert outputs["FOOD_LABEL"] == [native["prediction"]]
        assert outputs["PROBABILITY"] == pytest.approx([native["probability"]], abs=1e-5)


def test_tensors_as_nested_lists(backend_url: str) -> None:
    photos = np.random.default_rng(5).normal(size=(2, 3, 224, 224)).astype(np.float32).round(3)
    values = photos.tolist()
    path = f"{TENSORS}:predict"
    rows = post(backend_url, {"instances": values}, path).json()["predictions"]
    named = post(backend_url, {"instances": [{"input": row} for row in values]}, path).json()
    columns = post(backend_url, {"inputs": {"input": values}}, path).json()["outputs"]
    assert np.array(rows).shape == (2, 11)
    np.testing.assert_allclose(rows, named["predictions"], atol=1e-3)
    np.testing.assert_allclose(rows, columns, atol=1e-3)


SCHEMA = "does not match the schema"
PIXELS = 3 * 224 * 224
BODIES: list[tuple[Any, str]] = [
    (b"", "not JSON"),
    (b'{"instances": [', "not JSON"),
    (b'{"instances": ' + b"[" * 100_000, "not JSON"),
    ([], SCHEMA),
    ({}, "either instances or inputs"),
    ({"instances": [ENCODED], "inputs": [ENCODED]}, "either instances or inputs"),
    ({"instances": None}, "instances"),
    ({"instances": {}}, SCHEMA),
    ({"instances": []}, "1 to 4096"),
    ({"instances": [{"b64": ""}] * 4097}, "1 to 4096"),
    (b'{"instances": [' + b"{}," * 9000 + b"{}]}", "too many inputs"),
    (b'{"inputs": [' + b'"",' * 9000 + b'""]}', "too many inputs"),
    ({"inputs": ["AAAA"] * 4097}, "1 to 4096"),
    *(({"instances": [row]}, SCHEMA) for row in (1, None, [ENCODED], {"b64": 1})),
    ({"instances": [{"x": ENCODED}]}, "no input 'x'"),
    ({"instances": [{}]}, "INPUT_IMAGE is missing"),
    *(
        ({"instances": [{alias: ENCODED, "INPUT_IMAGE": ENCODED}]}, f"{alias} is an alias")
        for alias in ("b64", "data")
    ),
    ({"instances": [{"b64": ENCODED}, ENCODED]}, SCHEMA),
    ({"instances": ["%%%"]}, "base64"),
    ({"instances": [ENCODED, "AAAA"]}, "element 1"),
    ({"instances": [ENCODED], "signature_name": "x"}, "signature"),
    ({"instances": [ENCODED], "signature_name": None}, SCHEMA),
]


@pytest.mark.parametrize(("body", "words"), BODIES, ids=range(len(BODIES)))
def test_photos_that_are_refused(backend_url: str, body: Any, words: str) -> None:
    check_error(post(backend_url, body), 400, words)


TENSORS_REFUSED: list[tuple[Any, tuple[str, ...]]] = [
    ([{"b64": ENCODED}], ("input takes FP32", "b64")),
    ([{"input": {"b64": ENCODED}}], ("input", "FP32", "b64")),
    ([ENCODED, ENCODED], ("input takes FP32", "text")),
    ([["1"]], ("input takes FP32", "text")),
    ([], ("input takes FP32", "empty")),
    ([[]], ("input takes FP32", "empty")),
    ([[[[]]]] * 1000, ("input takes FP32", "empty")),
    ([None], ("input takes FP32", "null")),
    ([[[[None]]]], ("input takes FP32", "null")),
    (None, ("instances", "inputs", "null")),
    ({"input": None}, ("input",)),
    ("text", ()),
    ({"input": [[[[1.0]]]], "x": 1}, ()),
    *((values, ()) for values in ([[1.0]], [[[[1.0]]]], [[[[1.0], [1.0, 2.0]]]], [[[[[1.0]]]]])),
    ([[[[1.0], [1.0] * (PIXELS - 1)]]], ()),
    (np.full((1, 3, 224, 224), 1e39).tolist(), ()),
    ([1.0], ("input needs 150528 numbers", "has 1")),
]


@pytest.mark.parametrize("key", ["instances", "inputs"])
@pytest.mark.parametrize(("values", "words"), TENSORS_REFUSED, ids=range(len(TENSORS_REFUSED)))
def test_tensors_that_are_refused(
    backend_url: str, key: str, values: Any, words: tuple[str, ...]
) -> None:
    answer = post(backend_url, {key: values}, f"{TENSORS}:predict")
    check_error(answer, 400, "")
    text = answer.json()["error"]
    assert all(word in text for word in words)
    if words and "has 1" not in words:  # what is not numbers is not counted
        assert "has 1" not in text


def test_null_beside_rows_counts_as_left_out(backend_url: str) -> None:
    answer = post(backend_url, {"instances": [{"INPUT_IMAGE": ENCODED, "data": None}], "inputs": None})
    assert answer.status_code == 200


def test_errors_of_the_paths(backend_url: str) -> None:
    base = f"{backend_url}/v1"
    check_error(requests.get(f"{base}/models/x", timeout=60), 404, "no model")
    check_error(requests.get(f"{base}/models/{PHOTOS}/versions/3", timeout=60), 404, "version")
    check_error(requests.get(f"{base}/models/x/versions/1/nothing", timeout=60), 404, "")
    check_error(requests.delete(f"{base}/models/{PHOTOS}", timeout=60), 405, "")
    check_error(post(backend_url, {}, f"{PHOTOS}:regress"), 404, ":predict")
    check_error(
        post(backend_url, {}, f"{PHOTOS}/labels/stable:predict"), 404, "NAME/versions/VERSION:predict"
    )
    check_error(post(backend_url, {}, PHOTOS), 404, ":predict")
    check_error(post(backend_url, {}, f"{PHOTOS}/versions/9:predict"), 404, "version")
    check_error(post(backend_url, b"x" * (21 * 2**20)), 413, "20971520")
