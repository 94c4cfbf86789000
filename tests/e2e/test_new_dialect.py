"""A protocol of another package: one file and an entry point, nothing in this package."""

from collections.abc import Iterator

import pytest
import requests

from tests import exports, servers
from tests.servers import metric, wait_for

PATH = "/v1/labels"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service of texts whose second protocol under `/v1` is `tests/fake/dialect.py`."""
    installed = tmp_path_factory.mktemp("installed")
    metadata = installed / "labels-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: labels\nVersion: 1.0\n")
    entry_point = "[smallplates.dialects]\nlabels = tests.fake.dialect:DIALECT\n"
    (metadata / "entry_points.txt").write_text(entry_point)
    folder = metadata.parent / "texts"
    exports.saved(folder, exports.word_piece(), {})
    settings = {
        "SERVING_MODEL_DIR": str(folder),
        **servers.UNMEASURED,
        "SERVING_LOG_LEVEL": "error",
        "SERVING_MAX_BATCH_SIZE": "1",
        "SERVING_WEB_PROCESSES": "2",
        "SERVING_API_KEY": "guest",
        "PYTHONPATH": f"{installed}:{servers.ROOT}",
    }
    with servers.api("fastapi_onnx", settings) as url:
        yield url


def post(url: str, content: object, path: str = PATH, key: str = "guest") -> requests.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return requests.post(url + path, json=content, headers=headers, timeout=60)


def test_an_answer(url: str) -> None:
    answer = post(url, {"model": "texts", "input": "good"})
    native = post(url, {"text": "good"}, "/predict")
    assert answer.json() == {"label": native.json()["prediction"]}
    assert "infer;dur=" in answer.headers["Server-Timing"]
    labels = f'code="ok",model="texts",path="{PATH}",status="200"'
    wait_for(lambda: metric(url, rf"serving_requests_total{{{labels}}}") == 1)


@pytest.mark.parametrize(
    ("content", "status", "kind"),
    [
        ({"model": "nobody", "input": "good"}, 404, "not_found"),
        ({"model": "texts", "input": ""}, 400, "invalid_text"),
        ({"model": "texts"}, 422, "invalid_request"),
        ([], 422, "invalid_request"),
    ],
)
def test_errors_have_its_own_shape(url: str, content: object, status: int, kind: str) -> None:
    answer = post(url, content)
    assert answer.status_code == status, answer.text
    assert answer.json()["problem"]["type"] == kind


def test_a_wrong_key_and_method_have_its_shape_too(url: str) -> None:
    assert post(url, {}, key="wrong").json()["problem"]["type"] == "unauthorized"
    answer = requests.get(url + PATH, timeout=60)
    assert (answer.status_code, answer.json()["problem"]["type"]) == (405, "method_not_allowed")


@pytest.mark.parametrize("path", ["/v1/models/nobody:predict", "/v1/nothing", "/v1/labels/nothing"])
def test_the_other_protocol_of_this_prefix_keeps_its_own(url: str, path: str) -> None:
    answer = post(url, {}, path)
    assert (answer.status_code, next(iter(answer.json()))) == (404, "error")


def test_the_example_in_swagger_is_answered(url: str) -> None:
    headers = {"Authorization": "Bearer guest"}
    document = requests.get(f"{url}/openapi.json", headers=headers, timeout=60).json()
    operation = document["paths"][PATH]["post"]
    assert operation["tags"] == ["Labels"]
    assert operation["responses"]["503"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "Problem"
    )
    example = operation["requestBody"]["content"]["application/json"]["example"]
    assert post(url, example).status_code == 200
