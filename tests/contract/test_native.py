"""The native API, on both backends, over real connections."""

import base64
import gzip
import http.client
import json
import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
import requests

from flask_app.app import HEADERS
from tests import pictures
from tests.servers import wait_for

PHOTO = pictures.jpeg()
ENCODED = base64.b64encode(PHOTO).decode()
FORM = "multipart/form-data; boundary=b"
PART = b'--b\r\nContent-Disposition: form-data; name="image"'


def post(url: str, data: Any = None, path: str = "/predict", **headers: str) -> requests.Response:
    """Returns the answer to a body: bytes, chunks, or an object for JSON."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if isinstance(data, dict | list):
        data, named = json.dumps(data), {"Content-Type": "application/json", **named}
    return requests.post(url + path, data=data, headers=named, timeout=60)


def check_error(response: requests.Response, status: int, code: str) -> None:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"detail", "code", "request_id"}
    assert body["code"] == code
    assert body["request_id"] == response.headers["X-Request-ID"]
    assert "Traceback" not in response.text
    assert ".py" not in response.text


def test_every_way_in_gives_the_same_answer(backend_url: str) -> None:
    url = f"{backend_url}/predict?top_k=3"
    lines, packed = base64.encodebytes(PHOTO).decode(), gzip.compress(PHOTO)
    answers = [
        requests.post(url, json={"image": ENCODED}, timeout=60),
        requests.post(url, json={"image": "data:image/jpeg;base64," + ENCODED}, timeout=60),
        requests.post(url, json={"image": lines}, timeout=60),
        requests.post(f"{backend_url}/predict", json={"image": ENCODED, "top_k": 3}, timeout=60),
        requests.post(
            f"{backend_url}/predict/food11", files={"file": PHOTO}, data={"top_k": "3"}, timeout=30
        ),
        requests.post(url, data=PHOTO, headers={"Content-Type": "image/jpeg"}, timeout=60),
        requests.post(url, data=PHOTO, headers={"Content-Type": "application/octet-stream"}, timeout=60),
        requests.post(url, data=PHOTO, timeout=60),
        requests.post(url, data=iter([PHOTO[:99], PHOTO[99:]]), timeout=60),
        requests.post(url, data=packed, headers={"Content-Encoding": "gzip"}, timeout=60),
        requests.post(url, files={"image": ("photo.jpg", PHOTO)}, timeout=60),
        requests.post(url, files={"file": ("../../x", PHOTO, "image/jpeg")}, timeout=60),
    ]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    assert answers[0].headers["content-type"] == "application/json"
    first, *others = ([(s["label"], s["probability"]) for s in a.json()["top"]] for a in answers)
    for scores in others:  # workers may differ in the last digits: they choose the fastest kernels
        assert [label for label, _ in scores] == [label for label, _ in first]
        assert [p for _, p in scores] == pytest.approx([p for _, p in first], abs=1e-5)


def ways_to_send(photos: Sequence[bytes]) -> dict[str, dict[str, Any]]:
    files = [("image" if index % 2 else "file", photo) for index, photo in enumerate(photos)]
    return {
        "json": {"json": {"image": [base64.b64encode(photo).decode() for photo in photos]}},
        "form": {"files": [(name, ("photo.jpg", photo)) for name, photo in files]},
    }


@pytest.mark.parametrize("way", ["json", "form"])
def test_several_photos_get_a_list_of_answers(backend_url: str, way: str) -> None:
    photos = [make() for make in pictures.READABLE.values()][:12]
    url = f"{backend_url}/predict?top_k=2"
    wanted = [requests.post(url, data=photo, timeout=60).json() for photo in photos]
    response = requests.post(url, **ways_to_send(photos)[way], timeout=60)
    assert response.status_code == 200, response.text
    assert [answer["prediction"] for answer in response.json()] == [one["prediction"] for one in wanted]
    for answer, one in zip(response.json(), wanted, strict=True):
        assert answer["probability"] == pytest.approx(one["probability"], abs=1e-4)
        assert [score["label"] for score in answer["top"]] == [score["label"] for score in one["top"]]
    assert len({one["probability"] for one in wanted}) > 6  # so that the order shows


@pytest.mark.parametrize("way", ["json", "form"])
@pytest.mark.parametrize(
    ("make", "status", "code"),
    [
        (pictures.UNREADABLE["PNG truncated"], 400, "invalid_image"),
        (pictures.TOO_LARGE["just over"], 413, "image_too_large"),
    ],
)
def test_one_bad_photo_fails_the_request_and_its_place_is_named(
    backend_url: str, way: str, make: Callable[[], bytes], status: int, code: str
) -> None:
    sent = ways_to_send([PHOTO, PHOTO, PHOTO, make(), PHOTO])[way]
    response = requests.post(f"{backend_url}/predict", **sent, timeout=60)
    check_error(response, status, code)
    assert response.json()["detail"].startswith("element 3: the image ")


def test_top_k_is_sorted_and_complete(backend_url: str) -> None:
    labels = requests.get(f"{backend_url}/model", timeout=60).json()["labels"]
    url = f"{backend_url}/predict?top_k={len(labels)}"
    body = requests.post(url, data=PHOTO, timeout=60).json()
    probabilities = [entry["probability"] for entry in body["top"]]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1)
    assert {entry["label"] for entry in body["top"]} == set(labels)
    assert list(body) == ["prediction", "probability", "top"]
    assert body["top"][0] == {"label": body["prediction"], "probability": body["probability"]}


def test_head_is_get_without_a_body(backend_url: str) -> None:
    with requests.Session() as session:  # one connection: a body would be taken for the next answer
        for path in ("/health/ready", "/health/live", "/docs", "/v2", "/v1/models/food11", "/ping"):
            full = session.get(backend_url + path, timeout=60)
            head = session.head(backend_url + path, timeout=60)
            assert (head.status_code, head.content) == (200, b"")
            for name in ("Content-Type", "Content-Length"):
                assert head.headers[name] == full.headers[name]
        assert session.head(f"{backend_url}/predict", timeout=60).status_code == 405
        assert session.head(f"{backend_url}/nothing", timeout=60).status_code == 404
        assert session.get(f"{backend_url}/health/ready", timeout=60).json() == {
            "status": "ready",
            "models": {"food11": "ready"},
        }


def test_headers_of_an_answer(backend_url: str) -> None:
    response = post(backend_url, {"image": ENCODED}, X_Request_ID="my-id-1")
    assert response.headers["X-Request-ID"] == "my-id-1"
    stages = re.findall(r"(\w+);dur=([\d.]+)", response.headers["Server-Timing"])
    assert [name for name, _ in stages] == ["decode", "queue", "infer", "total"]
    times = {name: float(value) for name, value in stages}
    assert times["decode"] + times["queue"] + times["infer"] <= times["total"] + 0.1


@pytest.mark.parametrize("name", pictures.READABLE)
def test_odd_pictures_are_classified(backend_url: str, name: str) -> None:
    assert post(backend_url, pictures.READABLE[name]()).status_code == 200


@pytest.mark.parametrize("name", pictures.UNREADABLE)
def test_unreadable_pictures(backend_url: str, name: str) -> None:
    data = pictures.UNREADABLE[name]()
    check_error(post(backend_url, data, Content_Type="image/png"), 400, "invalid_image")
    if data:
        encoded = {"image": base64.b64encode(data).decode()}
        check_error(post(backend_url, encoded), 400, "invalid_image")


@pytest.mark.parametrize("name", pictures.TOO_LARGE)
def test_pictures_with_too_many_pixels(backend_url: str, name: str) -> None:
    check_error(post(backend_url, pictures.TOO_LARGE[name]()), 413, "image_too_large")


NOT_BASE64 = [
    *("%%%", "a", "abcde", "====", "ab=c", "caf\u00e9", "data:image/png,abcd", "data:;base64", "-_-"),
    *("https://example.com/a.jpg", ENCODED.rstrip("=") + "*"),
]
BODIES: dict[tuple[int, str], list[Any]] = {
    (400, "invalid_json"): [
        *(b"", b"{", b"nonsense", b'{"image": "abc', b"\xff\xfe", b"[" * 100_000, b'{"image": NaN?}')
    ],
    (400, "invalid_text"): [b'{"image": "\\ud800"}'],
    (400, "invalid_base64"): [{"image": image} for text in NOT_BASE64 for image in (text, [text])],
    (422, "invalid_request"): [
        *(b"null", b"1", b'"text"', [], {}, {"image": None}, {"image": 1}, {"image": [1]}),
        *({"image": []}, {"image": [""]}, {"image": [[ENCODED]]}, {"image": ["YQ=="] * 4097}),
        *({"img": "a"}, {"image": ""}, {"image": {"b64": ENCODED}}, [{"image": ENCODED}]),
        *({"image": ENCODED, "topk": 2}, {"image": ENCODED, "top_k": 12}),
    ],
}
"""Status and code -> bodies in JSON."""

FORMS = [
    *(b"", b"garbage", b"--b\r\n", b"--b\r\nno colon\r\n\r\n1\r\n--b--\r\n", b"--b--"),
    PART + b'; filename="f"\r\n\r\n\xff',
    PART.replace(b"image", b"x") + b'; filename="f"\r\n\r\n1\r\n--b--',
    PART.replace(b' name="image"', b"") + b'; filename="f"\r\n\r\n1\r\n--b--\r\n',
    (PART + b'; filename="f"\r\n\r\n1\r\n') * 257 + b"--b--\r\n",
    b"--b\r\n" + b"A: b\r\n" * 1000 + b"\r\n1\r\n--b--\r\n",
    (PART.replace(b"image", b"x") + b"\r\n\r\n\r\n") * 100 + b"--b--",
]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [(body, *error) for error, bodies in BODIES.items() for body in bodies],
    ids=range(sum(map(len, BODIES.values()))),
)
def test_json_that_is_refused(backend_url: str, body: Any, status: int, code: str) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    check_error(post(backend_url, body, **headers), status, code)


@pytest.mark.parametrize("name", ["", "; filename*=UTF-8''%E2%82%AC.jpg", '; filename=""'])
def test_a_file_in_a_form_needs_no_name(backend_url: str, name: str) -> None:
    form = PART + name.encode() + b"\r\n\r\n" + PHOTO + b"\r\n--b--\r\n"
    answer = post(backend_url, form, Content_Type=FORM)
    assert answer.json() == pytest.approx(post(backend_url, PHOTO).json(), abs=1e-5)
    text = PART + name.encode() + b"\r\n\r\ntext\r\n--b--\r\n"
    check_error(post(backend_url, text, Content_Type=FORM), 400, "invalid_image")


@pytest.mark.parametrize("body", FORMS, ids=range(len(FORMS)))
def test_forms_that_are_refused(backend_url: str, body: bytes) -> None:
    check_error(post(backend_url, body, Content_Type=FORM), 422, "invalid_request")


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        *(
            ({"Content-Type": kind}, 415, "unsupported_media_type")
            for kind in ("text/plain", "application/x-www-form-urlencoded", "video/mp4", "x", "/")
        ),
        ({"Content-Type": f'{FORM}; a="{chr(34) + ";" + chr(34)}' * 999}, 415, "unsupported_media_type"),
        ({"Content-Type": "multipart/form-data"}, 422, "invalid_request"),
        ({"Content-Type": "multipart/form-data; boundary=" + "x" * 500}, 422, "invalid_request"),
        ({"Content-Encoding": "br"}, 415, "unsupported_media_type"),
        ({"Content-Encoding": "gzip, gzip"}, 415, "unsupported_media_type"),
        ({"Content-Encoding": "gzip"}, 400, "invalid_body"),
        *(({"X-Request-Timeout-Ms": text}, 422, "invalid_request") for text in ("0", "-5", "1.5", "")),
        ({"X-Priority": "urgent"}, 422, "invalid_request"),
    ],
    ids=range(16),
)
def test_headers_that_are_refused(
    backend_url: str, headers: dict[str, str], status: int, code: str
) -> None:
    response = post(backend_url, PHOTO, **headers)
    check_error(response, status, code)
    is_encoding = code == "unsupported_media_type" and "Content-Encoding" in headers
    assert response.headers.get("Accept-Encoding") == ("gzip, deflate" if is_encoding else None)


@pytest.mark.parametrize("query", ["topk=2", *(f"top_k={k}" for k in ("0", "-1", "12", "x", "", "1.5"))])
@pytest.mark.parametrize("path", ["/predict", "/predict/food11"])
def test_queries_that_are_refused(backend_url: str, path: str, query: str) -> None:
    check_error(post(backend_url, PHOTO, f"{path}?{query}"), 422, "invalid_request")


def test_too_many_bytes_by_declaration(backend_url: str) -> None:
    parts = urlsplit(backend_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    connection.putrequest("POST", "/predict")
    connection.putheader("Content-Length", str(10**12))
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["code"] == "payload_too_large"
    connection.close()


def test_too_many_bytes_without_declaration(backend_url: str) -> None:
    chunks = (bytes(2**20) for _ in range(21))
    check_error(post(backend_url, chunks), 413, "payload_too_large")


def test_unknown_paths_and_methods(backend_url: str) -> None:
    check_error(requests.get(f"{backend_url}/nothing", timeout=60), 404, "not_found")
    response = requests.get(f"{backend_url}/predict", timeout=60)
    check_error(response, 405, "method_not_allowed")
    assert response.headers["Allow"] == "POST"


def test_deadlines(backend_url: str) -> None:
    for value in ("30001", "9" * 5000):  # a longer one than the limit is cut
        response = post(backend_url, {"image": ENCODED}, X_Request_Timeout_Ms=value)
        assert response.status_code == 200
    large = pictures.encode(pictures.plate(4000, 3000), "PNG", compress_level=1)
    check_error(post(backend_url, large, X_Request_Timeout_Ms="1"), 504, "deadline_exceeded")


def test_health_and_model(backend_url: str) -> None:
    assert requests.get(f"{backend_url}/health/live", timeout=60).status_code == 200
    assert requests.get(f"{backend_url}/health/ready", timeout=60).status_code == 200
    model = requests.get(f"{backend_url}/model", timeout=60).json()
    assert model["name"] == "food11"
    assert len(model["labels"]) == 11
    assert model["device"] == "cpu"
    assert (model["precision"], model["instances"]) == ("fp32", 1)
    assert model["precision_reason"]
    assert model["batch_ms"][str(model["max_batch_size"])] > 0
    assert model["thresholds"]["probability"] > 0
    assert (model["title"], model["task"]) == ("What food is this?", "image-classification")
    assert list(model["request_schema"]["properties"]) == ["image"]
    assert list(model["answer_schema"]["properties"]) == ["prediction", "probability", "top"]
    assert model["limits"] == {"request_bytes": 20 * 2**20, "image_pixels": 52_000_000}
    assert post(backend_url, model["example"]).status_code == 200


def test_metrics_count_what_happened(backend_url: str) -> None:
    def value(name: str) -> float:
        text = requests.get(f"{backend_url}/metrics", timeout=60).text
        match = re.search(rf"^{re.escape(name)} ([\d.e+]+)$", text, re.MULTILINE)
        return float(match[1]) if match else 0.0

    ok = 'serving_requests_total{code="ok",model="food11",path="/predict",status="200"}'
    bad = 'serving_requests_total{code="invalid_image",model="food11",path="/predict",status="400"}'
    named = bad.replace("/predict", "/predict/{model}")
    infer, total = (f'serving_{name}_seconds_count{{model="food11"}}' for name in ("infer", "request"))
    wait_for(lambda: value('serving_free_slots{model="food11"}') == 256)  # what others gave up is over
    before = [value(name) for name in (ok, bad, named, infer, total)]
    post(backend_url, {"image": ENCODED})
    for path in ("/predict", "/predict/food11"):
        requests.post(f"{backend_url}{path}", data=b"no picture", timeout=60)
    after = [value(name) for name in (ok, bad, named, infer, total)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1, 1, 3]
    wait_for(lambda: value('serving_free_slots{model="food11"}') == 256)


def test_a_model_has_its_aliases_for_requests(backend_url: str) -> None:
    for name, status in (("food11", 200), ("food_classifier", 200), ("food_classifier_onnx", 404)):
        assert (
            requests.post(f"{backend_url}/predict/{name}", data=PHOTO, timeout=30).status_code == status
        )
        assert requests.get(f"{backend_url}/model/{name}", timeout=10).status_code == status


def test_an_unknown_models_name_is_not_in_the_metrics(backend_url: str) -> None:
    assert requests.post(f"{backend_url}/predict/nobody", data=PHOTO, timeout=60).status_code == 404
    assert "nobody" not in requests.get(f"{backend_url}/metrics", timeout=60).text


def test_the_documents_say_what_the_model_and_each_protocol_are_for(backend_url: str) -> None:
    document = requests.get(f"{backend_url}/openapi.json", timeout=60).json()
    predict = document["paths"]["/predict"]["post"]
    assert predict["summary"] == "What food is this?"
    statuses = {"200", "400", "401", "408", "413", "415", "422", "500", "503", "504"}
    assert set(predict["responses"]) == statuses
    sentences = {tag["name"]: tag["description"] for tag in document["tags"]}
    operations = [each for path in document["paths"].values() for each in path.values()]
    assert {tag for each in operations for tag in each["tags"]} <= set(sentences)
    assert all(sentence.endswith(".") for sentence in sentences.values())


def test_the_documents_load_nothing_from_elsewhere(backend_url: str) -> None:
    start = requests.get(backend_url, timeout=60)
    assert start.url == f"{backend_url}/docs"
    policy = "Content-Security-Policy"
    assert start.headers[policy] == HEADERS[policy]
    sources = re.findall(r"""(?:src=|href=)["']([^"']+)""", start.text)
    scripts = [requests.get(urljoin(start.url, each), timeout=60) for each in sources if ".js" in each]
    sources += re.findall(r'fetch\("([^"]+)', scripts[-1].text)
    assert "openapi.json" in sources
    for source in sources:  # relative, for a proxy that puts a prefix before all paths
        assert not source.startswith(("/", "http"))
        assert requests.get(urljoin(start.url, source), timeout=60).status_code == 200
    document = requests.get(f"{backend_url}/openapi.json", timeout=60).json()
    assert [server["url"] for server in document["servers"]] == ["."]
