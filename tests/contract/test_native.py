"""The native API, on both backends, over real connections."""

import base64
import gzip
import http.client
import json
import re
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests import pictures

PHOTO = pictures.jpeg()
ENCODED = base64.b64encode(PHOTO).decode()


def post_json(url: str, body: object, **options: Any) -> requests.Response:
    """POST /predict with a JSON body."""
    return requests.post(f"{url}/predict", json=body, timeout=30, **options)


def check_error(response: requests.Response, status: int, code: str) -> None:
    """The documented body of an error, and no trace of the code behind it."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"detail", "code", "request_id"}
    assert body["code"] == code
    assert body["request_id"] == response.headers["X-Request-ID"]
    assert "Traceback" not in response.text
    assert ".py" not in response.text


def test_base64_in_json(backend_url: str) -> None:
    response = post_json(backend_url, {"image": ENCODED})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"prediction", "probability"}
    labels = requests.get(f"{backend_url}/model", timeout=10).json()["labels"]
    assert body["prediction"] in labels
    assert 1 / len(labels) <= body["probability"] <= 1


def test_every_way_in_gives_the_same_answer(backend_url: str) -> None:
    url = f"{backend_url}/predict?top_k=3"
    lines = base64.encodebytes(PHOTO).decode()
    answers = [
        requests.post(url, json={"image": ENCODED}, timeout=30),
        requests.post(url, json={"image": "data:image/jpeg;base64," + ENCODED}, timeout=30),
        requests.post(url, json={"image": lines}, timeout=30),
        requests.post(f"{backend_url}/predict", json={"image": ENCODED, "top_k": 3}, timeout=30),
        requests.post(
            f"{backend_url}/predict/food11", files={"file": PHOTO}, data={"top_k": "3"}, timeout=30
        ),
        requests.post(url, data=PHOTO, headers={"Content-Type": "image/jpeg"}, timeout=30),
        requests.post(url, data=PHOTO, headers={"Content-Type": "application/octet-stream"}, timeout=30),
        requests.post(url, data=PHOTO, timeout=30),
        requests.post(url, data=iter([PHOTO[:99], PHOTO[99:]]), timeout=30),
        requests.post(url, files={"image": ("photo.jpg", PHOTO)}, timeout=30),
        requests.post(url, files={"file": ("../../x", PHOTO, "image/jpeg")}, timeout=30),
    ]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    first, *others = ([(s["label"], s["probability"]) for s in a.json()["top"]] for a in answers)
    for scores in others:  # workers may differ in the last digits: they choose the fastest kernels
        assert [label for label, _ in scores] == [label for label, _ in first]
        assert [p for _, p in scores] == pytest.approx([p for _, p in first], abs=1e-5)


def test_top_k_is_sorted_and_complete(backend_url: str) -> None:
    labels = requests.get(f"{backend_url}/model", timeout=10).json()["labels"]
    url = f"{backend_url}/predict?top_k={len(labels)}"
    body = requests.post(url, data=PHOTO, timeout=30).json()
    probabilities = [entry["probability"] for entry in body["top"]]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1)
    assert {entry["label"] for entry in body["top"]} == set(labels)
    assert body["top"][0] == {"label": body["prediction"], "probability": body["probability"]}


@pytest.mark.parametrize("top_k", ["0", "-1", "12", "x", "", "1.5", "99999999999999999999"])
def test_top_k_out_of_range(backend_url: str, top_k: str) -> None:
    url = f"{backend_url}/predict?top_k={top_k}"
    check_error(requests.post(url, data=PHOTO, timeout=30), 422, "invalid_request")


@pytest.mark.parametrize("path", ["/predict", "/predict/food11"])
def test_what_is_unknown_is_refused(backend_url: str, path: str) -> None:
    url = backend_url + path
    check_error(requests.post(f"{url}?topk=2", data=PHOTO, timeout=10), 422, "invalid_request")
    named = requests.post(url, json={"image": ENCODED, "topk": 2}, timeout=10)
    check_error(named, 422, "invalid_request")
    assert "image, top_k" in named.json()["detail"]
    form = requests.post(url, files={"image": PHOTO}, data={"comment": "x"}, timeout=10)
    check_error(form, 422, "invalid_request")
    two = requests.post(f"{url}?top_k=2", json={"image": ENCODED, "top_k": 3}, timeout=10)
    check_error(two, 422, "invalid_request")


def test_head_is_get_without_a_body(backend_url: str) -> None:
    with requests.Session() as session:  # one connection: a body would be taken for the next answer
        for path in ("/health/ready", "/health/live", "/docs", "/v2", "/v1/models/food11", "/ping"):
            full = session.get(backend_url + path, timeout=10)
            head = session.head(backend_url + path, timeout=10)
            assert (head.status_code, head.content) == (200, b"")
            for name in ("Content-Type", "Content-Length"):
                assert head.headers[name] == full.headers[name]
        assert session.head(f"{backend_url}/predict", timeout=10).status_code == 405
        assert session.head(f"{backend_url}/nothing", timeout=10).status_code == 404
        assert session.get(f"{backend_url}/health/ready", timeout=10).json() == {
            "status": "ready",
            "models": {"food11": "ready"},
        }


def test_headers_of_an_answer(backend_url: str) -> None:
    response = post_json(backend_url, {"image": ENCODED}, headers={"X-Request-ID": "my-id-1"})
    assert response.headers["X-Request-ID"] == "my-id-1"
    stages = re.findall(r"(\w+);dur=([\d.]+)", response.headers["Server-Timing"])
    assert [name for name, _ in stages] == ["decode", "queue", "infer", "total"]
    times = {name: float(value) for name, value in stages}
    assert times["decode"] + times["queue"] + times["infer"] <= times["total"] + 0.1


@pytest.mark.parametrize("offered", ["", "x" * 129, "two words", "caf\u00e9"])
def test_a_request_id_that_could_harm_is_replaced(backend_url: str, offered: str) -> None:
    headers = {"X-Request-ID": offered.encode("latin-1")}
    response = requests.get(f"{backend_url}/health/live", headers=headers, timeout=10)
    assert re.fullmatch("[0-9a-f]{32}", response.headers["X-Request-ID"])


@pytest.mark.parametrize("name", pictures.READABLE)
def test_odd_pictures_are_classified(backend_url: str, name: str) -> None:
    response = requests.post(f"{backend_url}/predict", data=pictures.READABLE[name](), timeout=30)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("name", pictures.UNREADABLE)
def test_unreadable_pictures(backend_url: str, name: str) -> None:
    data = pictures.UNREADABLE[name]()
    headers = {"Content-Type": "image/png"}
    response = requests.post(f"{backend_url}/predict", data=data, headers=headers, timeout=30)
    check_error(response, 400, "invalid_image")
    if data:
        encoded = base64.b64encode(data).decode()
        check_error(post_json(backend_url, {"image": encoded}), 400, "invalid_image")


@pytest.mark.parametrize("name", pictures.TOO_LARGE)
def test_pictures_with_too_many_pixels(backend_url: str, name: str) -> None:
    data = pictures.TOO_LARGE[name]()
    response = requests.post(f"{backend_url}/predict", data=data, timeout=30)
    check_error(response, 413, "image_too_large")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"image": "abc',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"image": NaN?}',
    ],
    ids=range(7),
)
def test_what_is_not_json(backend_url: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    response = requests.post(f"{backend_url}/predict", data=body, headers=headers, timeout=30)
    check_error(response, 400, "invalid_json")


@pytest.mark.parametrize(
    "body",
    [
        None,
        1,
        "text",
        [],
        {},
        {"image": None},
        {"image": 1},
        {"image": ["a"]},
        {"img": "a"},
        {"image": ""},
        {"image": {"b64": ENCODED}},
        [{"image": ENCODED}],
    ],
)
def test_json_of_another_shape(backend_url: str, body: object) -> None:
    headers = {"Content-Type": "application/json"}
    data = json.dumps(body)
    response = requests.post(f"{backend_url}/predict", data=data, headers=headers, timeout=30)
    check_error(response, 422, "invalid_request")


@pytest.mark.parametrize(
    "text",
    [
        "%%%",
        "a",
        "abcde",
        "====",
        "ab=c",
        "café",
        "data:image/png,abcd",
        "data:;base64",
        "-_-",
        "https://example.com/a.jpg",
        ENCODED[:-1] if ENCODED.endswith("=") else ENCODED[:-2] + "*",
    ],
)
def test_what_is_not_base64(backend_url: str, text: str) -> None:
    check_error(post_json(backend_url, {"image": text}), 400, "invalid_base64")


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "application/xml", "video/mp4", "x", "/"],
)
def test_unknown_content_types(backend_url: str, content_type: str) -> None:
    headers = {"Content-Type": content_type}
    response = requests.post(f"{backend_url}/predict", data=PHOTO, headers=headers, timeout=30)
    check_error(response, 415, "unsupported_media_type")


@pytest.mark.parametrize("path", ["predict", "predictions/food_classifier"])
def test_a_content_type_is_not_a_book(backend_url: str, path: str) -> None:
    headers = {"Content-Type": 'multipart/form-data; a="' + '"";' * 10_000}
    response = requests.post(f"{backend_url}/{path}", data=PHOTO, headers=headers, timeout=30)
    assert response.status_code == 415
    assert "more than 1024 characters" in response.text


def test_a_compressed_body_is_answered_like_any_other(backend_url: str) -> None:
    headers = {"Content-Type": "image/jpeg"}
    plain = requests.post(f"{backend_url}/predict", data=PHOTO, headers=headers, timeout=30)
    headers["Content-Encoding"] = "gzip"
    packed = gzip.compress(PHOTO)
    response = requests.post(f"{backend_url}/predict", data=packed, headers=headers, timeout=30)
    assert response.json()["prediction"] == plain.json()["prediction"]
    assert response.json()["probability"] == pytest.approx(plain.json()["probability"], abs=1e-5)
    response = requests.post(f"{backend_url}/predict", data=PHOTO, headers=headers, timeout=30)
    check_error(response, 400, "invalid_body")


@pytest.mark.parametrize(
    ("codings", "body"),
    [
        (["x-gzip"], gzip.compress(PHOTO)),
        (["gzip"], gzip.compress(PHOTO[:99]) + gzip.compress(PHOTO[99:])),
        (["gzip"], gzip.compress(b"") + gzip.compress(PHOTO)),
        (["identity", "GZip"], gzip.compress(PHOTO)),
    ],
    ids=["x-gzip", "two members", "an empty member", "two headers"],
)
def test_every_valid_coding_of_a_body(backend_url: str, codings: list[str], body: bytes) -> None:
    parts = urlsplit(backend_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.putrequest("POST", "/predict")
    for coding in codings:
        connection.putheader("Content-Encoding", coding)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()


@pytest.mark.parametrize("coding", ["br", "gzip, gzip"])
@pytest.mark.parametrize("path", ["predict", "v2/models/food_classifier/infer", "predictions/food11"])
def test_another_coding_is_refused_with_those_that_are_supported(
    backend_url: str, path: str, coding: str
) -> None:
    headers = {"Content-Encoding": coding}
    response = requests.post(f"{backend_url}/{path}", data=PHOTO, headers=headers, timeout=30)
    assert response.status_code == 415
    assert response.headers["Accept-Encoding"] == "gzip, deflate"


def test_half_a_character_is_no_text(backend_url: str) -> None:
    headers, body = {"Content-Type": "application/json"}, b'{"image": "\\ud800"}'
    response = requests.post(f"{backend_url}/predict", data=body, headers=headers, timeout=30)
    check_error(response, 400, "invalid_text")


FORM = "multipart/form-data; boundary=b"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"--b--"),
        (FORM, b""),
        (FORM, b"garbage"),
        (FORM, b"--b\r\n"),
        (FORM, b'--b\r\nContent-Disposition: form-data; name="image"\r\n\r\ntext\r\n--b--\r\n'),
        (FORM, b'--b\r\nContent-Disposition: form-data; name="x"; filename="f"\r\n\r\n1\r\n--b--'),
        (FORM, b"--b\r\nno colon\r\n\r\n1\r\n--b--\r\n"),
        (FORM, b'--b\r\nContent-Disposition: form-data; filename="f"\r\n\r\n1\r\n--b--\r\n'),
        (FORM, b"--b\r\n" + b"A: b\r\n" * 1000 + b"\r\n1\r\n--b--\r\n"),
        (FORM, b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * 100 + b"--b--"),
        (FORM, b'--b\r\nContent-Disposition: form-data; name="image"; filename="f"\r\n\r\n\xff'),
        ("multipart/form-data; boundary=" + "x" * 500, b"--x--"),
    ],
    ids=range(12),
)
def test_broken_forms(backend_url: str, content_type: str, body: bytes) -> None:
    headers = {"Content-Type": content_type}
    response = requests.post(f"{backend_url}/predict", data=body, headers=headers, timeout=30)
    check_error(response, 422, "invalid_request")


def test_two_files_in_a_form(backend_url: str) -> None:
    files = [("image", ("a", PHOTO)), ("file", ("b", PHOTO))]
    response = requests.post(f"{backend_url}/predict", files=files, timeout=30)
    check_error(response, 422, "invalid_request")


def test_too_many_bytes_by_declaration(backend_url: str) -> None:
    parts = urlsplit(backend_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.putrequest("POST", "/predict")
    connection.putheader("Content-Length", str(10**12))
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["code"] == "payload_too_large"
    connection.close()


def test_too_many_bytes_without_declaration(backend_url: str) -> None:
    chunks = (bytes(2**20) for _ in range(21))
    response = requests.post(f"{backend_url}/predict", data=chunks, timeout=30)
    check_error(response, 413, "payload_too_large")


def test_unknown_paths_and_methods(backend_url: str) -> None:
    check_error(requests.get(f"{backend_url}/nothing", timeout=10), 404, "not_found")
    response = requests.get(f"{backend_url}/predict", timeout=10)
    check_error(response, 405, "method_not_allowed")
    assert response.headers["Allow"] == "POST"


@pytest.mark.parametrize("value", ["0", "000", "-5", "1.5", "soon", ""])
def test_deadline_header_that_cannot_be_read(backend_url: str, value: str) -> None:
    response = post_json(backend_url, {"image": ENCODED}, headers={"X-Request-Timeout-Ms": value})
    check_error(response, 422, "invalid_request")


def test_a_deadline_longer_than_the_limit_is_cut(backend_url: str) -> None:
    for value in ("30001", "9" * 5000):
        response = post_json(backend_url, {"image": ENCODED}, headers={"X-Request-Timeout-Ms": value})
        assert response.status_code == 200


def test_a_deadline_that_cannot_be_met(backend_url: str) -> None:
    large = pictures.encode(pictures.plate(4000, 3000), "PNG", compress_level=1)
    response = requests.post(
        f"{backend_url}/predict", data=large, headers={"X-Request-Timeout-Ms": "1"}, timeout=30
    )
    check_error(response, 504, "deadline_exceeded")


def test_health_and_model(backend_url: str) -> None:
    assert requests.get(f"{backend_url}/health/live", timeout=10).status_code == 200
    assert requests.get(f"{backend_url}/health/ready", timeout=10).status_code == 200
    model = requests.get(f"{backend_url}/model", timeout=10).json()
    assert model["name"] == "food11"
    assert len(model["labels"]) == 11
    assert model["device"] == "cpu"
    assert model["precision"] in ("fp32", "bf16", "int8")  # as this machine measured
    assert model["precision_reason"]
    assert model["instances"] >= 1
    assert model["batch_ms"][str(model["max_batch_size"])] > 0
    assert model["thresholds"]["probability"] > 0


def test_model_says_what_a_page_needs(backend_url: str) -> None:
    model = requests.get(f"{backend_url}/model", timeout=10).json()
    assert (model["title"], model["task"]) == ("What food is this?", "image-classification")
    assert list(model["request_schema"]["properties"]) == ["image"]
    assert list(model["answer_schema"]["properties"]) == ["prediction", "probability", "top"]
    assert model["limits"] == {"request_bytes": 20 * 2**20, "image_pixels": 50_000_000}
    assert post_json(backend_url, model["example"]).status_code == 200


def test_metrics_count_what_happened(backend_url: str) -> None:
    def value(name: str) -> float:
        text = requests.get(f"{backend_url}/metrics", timeout=10).text
        match = re.search(rf"^{re.escape(name)} ([\d.e+]+)$", text, re.MULTILINE)
        return float(match[1]) if match else 0.0

    ok = 'serving_requests_total{code="ok",model="food11",path="/predict",status="200"}'
    bad = 'serving_requests_total{code="invalid_image",model="food11",path="/predict",status="400"}'
    named = bad.replace("/predict", "/predict/{model}")
    infer, total = (f'serving_{name}_seconds_count{{model="food11"}}' for name in ("infer", "request"))
    before = [value(name) for name in (ok, bad, named, infer, total)]
    post_json(backend_url, {"image": ENCODED})
    for path in ("/predict", "/predict/food11"):
        requests.post(f"{backend_url}{path}", data=b"no picture", timeout=10)
    after = [value(name) for name in (ok, bad, named, infer, total)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1, 1, 3]
    assert value('serving_free_slots{model="food11"}') == 256


def test_an_unknown_models_name_is_not_in_the_metrics(backend_url: str) -> None:
    assert requests.post(f"{backend_url}/predict/nobody", data=PHOTO, timeout=10).status_code == 404
    assert "nobody" not in requests.get(f"{backend_url}/metrics", timeout=10).text


def test_the_example_in_the_documents_works(backend_url: str) -> None:
    operation = requests.get(f"{backend_url}/openapi.json", timeout=10).json()["paths"]["/predict"]
    example = operation["post"]["requestBody"]["content"]["application/json"]["example"]
    assert post_json(backend_url, example).status_code == 200
    documented = set(operation["post"]["responses"])
    assert {"200", "400", "401", "408", "413", "415", "422", "500", "503", "504"} == documented


def test_the_documents_load_nothing_from_elsewhere(backend_url: str) -> None:
    start = requests.get(backend_url, timeout=10)
    assert start.url == f"{backend_url}/docs"
    sources = re.findall(r'(?:src|href)="([^"]+)"', start.text)
    assert sources
    for source in sources:
        assert source.startswith("/")
        assert requests.get(backend_url + source, timeout=10).status_code == 200
