"""The Open Inference Protocol over HTTP, on both backends, with Triton's own client and by hand."""

import base64
import gzip
import json
import zlib
from functools import partial
from typing import Any

import numpy as np
import pytest
import requests
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.image.decode import ImageDecoder
from tests import pictures

PHOTO = pictures.jpeg()
ENCODED = base64.b64encode(PHOTO).decode()
PHOTOS, TENSORS = "food_classifier", "food_classifier_onnx"
JSON_LENGTH = "Inference-Header-Content-Length"


@pytest.fixture
def client(backend_url: str) -> Any:  # tritonclient has no types
    """Triton's client, synchronous and with threads."""
    made = triton.InferenceServerClient(backend_url.removeprefix("http://"), concurrency=4)
    yield made
    made.close()


def photo_input(values: list[Any], shape: list[int], binary: bool = True) -> Any:
    """As the tutorial makes it."""
    tensor = triton.InferInput("INPUT_IMAGE", shape, "BYTES")
    return tensor.set_data_from_numpy(np.array(values, object).reshape(shape), binary_data=binary)


def tensor_input(values: np.ndarray, binary: bool = True) -> Any:
    """Normalised photos."""
    tensor = triton.InferInput("input", list(values.shape), "FP32")
    return tensor.set_data_from_numpy(values, binary_data=binary)


def normalised() -> np.ndarray:
    """The test photo as a client prepares it: float32 [1, 3, height, width]."""
    model = Model.read(Settings().model_dir)
    pipeline = model.description.pipeline
    pixels = ImageDecoder(pipeline, 50_000_000).decode(PHOTO)
    photo = (pixels / 255 - np.array(pipeline.mean)) / np.array(pipeline.std)
    return np.ascontiguousarray(photo.transpose(2, 0, 1)[np.newaxis], np.float32)


def predict(url: str) -> dict[str, Any]:
    """What the native API says of the photo."""
    answer: dict[str, Any] = requests.post(f"{url}/predict?top_k=11", data=PHOTO, timeout=30).json()
    return answer


def post(url: str, body: Any, model: str = PHOTOS, **headers: str) -> requests.Response:
    """A request by hand; `body` is JSON, or bytes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return requests.post(f"{url}/v2/models/{model}/infer", data=data, headers=named, timeout=30)


def question(data: Any = None, shape: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    """JSON for one photo, or with something else in its place."""
    tensor = {"name": "INPUT_IMAGE", "datatype": "BYTES", "shape": shape or [1, 1]}
    return {"inputs": [{**tensor, "data": [ENCODED] if data is None else data}], **more}


def check_error(response: requests.Response, status: int, words: str) -> None:
    """The protocol's shape of an error."""
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    assert words in body["error"]
    assert ".py" not in response.text


def test_health_and_metadata(backend_url: str, client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(PHOTOS)
    assert client.is_model_ready(TENSORS, "1")
    assert not client.is_model_ready(PHOTOS, "2")
    server = client.get_server_metadata()
    assert {"statistics", "binary_tensor_data", "classification"} <= set(server["extensions"])
    model = client.get_model_metadata(TENSORS)
    assert model["versions"] == ["1"]
    assert model["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 3, 224, 224]}]
    assert model["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 11]}]
    config = client.get_model_config(PHOTOS, "1")
    assert config["max_batch_size"] == 4096
    (described,) = config["input"]
    assert described == {
        "name": "INPUT_IMAGE",
        "data_type": "TYPE_STRING",
        "dims": [1],
        "format": "FORMAT_NONE",
    }
    assert client.get_model_config(TENSORS)["input"][0]["format"] == "FORMAT_NCHW"
    assert "dynamic_batching" in config
    index = client.get_model_repository_index()
    assert {(model["name"], model["state"]) for model in index} == {
        (name, "READY") for name in (PHOTOS, TENSORS, "food11")
    }
    ready = requests.post(f"{backend_url}/v2/repository/index", json={"ready": True}, timeout=10)
    assert ready.json() == index
    too_much = requests.post(f"{backend_url}/v2/repository/index", data=b" " * 65537, timeout=10)
    assert too_much.status_code == 413


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("shape", [[1], [1, 1], [3], [3, 1]])
@pytest.mark.parametrize("model", [PHOTOS, "food11"])
def test_photos(backend_url: str, client: Any, binary: bool, shape: list[int], model: str) -> None:
    native = predict(backend_url)
    asked = [
        triton.InferRequestedOutput(name, binary_data=binary) for name in ("FOOD_LABEL", "PROBABILITY")
    ]
    result = client.infer(
        model, [photo_input([ENCODED] * shape[0], shape, binary)], outputs=asked, request_id="q1"
    )
    assert result.get_response()["id"] == "q1"
    assert result.get_response()["model_version"] == "1"
    labels, probabilities = result.as_numpy("FOOD_LABEL"), result.as_numpy("PROBABILITY")
    assert labels.shape == probabilities.shape == tuple(shape)
    texts = {t.decode() if isinstance(t, bytes) else t for t in labels.ravel().tolist()}
    assert texts == {native["prediction"]}
    assert probabilities.ravel().tolist() == pytest.approx([native["probability"]] * shape[0], abs=1e-4)


def test_the_image_s_own_bytes(backend_url: str, client: Any) -> None:
    native = predict(backend_url)
    result = client.infer(PHOTOS, [photo_input([PHOTO], [1, 1])])
    assert result.as_numpy("FOOD_LABEL").tolist() == [[native["prediction"].encode()]]
    for name, make in pictures.READABLE.items():
        assert client.infer(PHOTOS, [photo_input([make()], [1])]), name
    raw = requests.post(
        f"{backend_url}/v2/models/{PHOTOS}/infer", data=PHOTO, headers={JSON_LENGTH: "0"}, timeout=30
    )
    head = json.loads(raw.content[: int(raw.headers[JSON_LENGTH])])
    assert [output["shape"] for output in head["outputs"]] == [[1], [1]]
    assert native["prediction"].encode() in raw.content


@pytest.mark.parametrize("binary", [True, False])
def test_tensors_get_the_class_of_predict(backend_url: str, client: Any, binary: bool) -> None:
    native = predict(backend_url)
    labels = requests.get(f"{backend_url}/model", timeout=10).json()["labels"]
    batch = np.concatenate([normalised(), -normalised()])
    result = client.infer(TENSORS, [tensor_input(batch, binary)])
    logits = result.as_numpy("output")
    assert logits.shape == (2, 11)
    assert logits.dtype == np.float32
    probabilities = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert labels[int(logits[0].argmax())] == native["prediction"]
    assert probabilities.max() == pytest.approx(native["probability"], abs=1e-3)
    single = client.infer(TENSORS, [tensor_input(batch[0], binary)]).as_numpy("output")
    assert single.shape == (11,)
    np.testing.assert_allclose(single, logits[0], atol=1e-3)


def test_numbers_may_be_flat_or_nested(backend_url: str) -> None:
    photo = normalised()
    answers = []
    for data in (photo.ravel().tolist(), photo.tolist()):
        tensor = {"name": "input", "datatype": "FP32", "shape": list(photo.shape), "data": data}
        response = post(backend_url, {"inputs": [tensor]}, TENSORS)
        assert response.status_code == 200, response.text
        answers.append(response.json()["outputs"][0]["data"])
    assert answers[0] == pytest.approx(answers[1], abs=1e-4)


def test_classification(backend_url: str, client: Any) -> None:
    native = predict(backend_url)["top"]
    labels = requests.get(f"{backend_url}/model", timeout=10).json()["labels"]
    asked = [triton.InferRequestedOutput("PROBABILITY", class_count=3)]
    best = client.infer(PHOTOS, [photo_input([PHOTO] * 2, [2, 1])], outputs=asked).as_numpy(
        "PROBABILITY"
    )
    assert best.shape == (2, 3)
    for text, score in zip(best[0].tolist(), native, strict=False):
        value, index, label = text.decode().split(":")
        assert float(value) == pytest.approx(score["probability"], abs=1e-4)
        assert labels[int(index)] == label == score["label"]
    asked = [triton.InferRequestedOutput("output", class_count=99)]
    logits = client.infer(TENSORS, [tensor_input(normalised())], outputs=asked).as_numpy("output")
    assert logits.shape == (1, 11)
    assert [text.decode().split(":")[2] for text in logits[0]] == [
        candidate["label"] for candidate in native
    ]


@pytest.mark.parametrize("count", [1, 3])
def test_top_k(backend_url: str, client: Any, count: int) -> None:
    native = predict(backend_url)["top"]
    inputs = [photo_input([PHOTO] * count, [count, 1])]
    for asked, listed in ((2, 2), (11, 11), (99, 11)):
        result = client.infer(PHOTOS, inputs, parameters={"top_k": asked})
        labels, probabilities = result.as_numpy("FOOD_LABEL"), result.as_numpy("PROBABILITY")
        assert labels.shape == probabilities.shape == (count, listed)
        assert labels[-1].tolist() == [candidate["label"].encode() for candidate in native[:listed]]
        wanted = [candidate["probability"] for candidate in native[:listed]]
        assert probabilities[-1].tolist() == pytest.approx(wanted, abs=1e-4)
    best = client.infer(PHOTOS, inputs, parameters={"top_k": 1})
    assert best.as_numpy("FOOD_LABEL").shape == (count, 1)
    with_text = triton.InferRequestedOutput("PROBABILITY", class_count=3)
    texts = client.infer(PHOTOS, inputs, outputs=[with_text], parameters={"top_k": 5})
    assert texts.as_numpy("PROBABILITY").shape == (count, 3)


@pytest.mark.parametrize("top_k", [-1, "5", True, 2.5, 2**40])
def test_top_k_is_a_number(backend_url: str, top_k: Any) -> None:
    check_error(post(backend_url, question(parameters={"top_k": top_k})), 400, "top_k")


def test_the_configuration_carries_the_description(backend_url: str, client: Any) -> None:
    parameters = client.get_model_config(PHOTOS)["parameters"]
    description = json.loads(parameters["model.json"]["string_value"])
    served = requests.get(f"{backend_url}/model", timeout=10).json()
    for key in ("name", "version", "labels", "image", "thresholds"):
        assert description[key] == served[key], key


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compression_both_ways(client: Any, encoding: str) -> None:
    batch = np.repeat(normalised(), 16, axis=0)
    result = client.infer(
        TENSORS,
        [tensor_input(batch)],
        request_compression_algorithm=encoding,
        response_compression_algorithm=encoding,
    )
    assert result.as_numpy("output").shape == (16, 11)


def test_compressed_answers_say_so(backend_url: str) -> None:
    asked = [{"name": "PROBABILITY", "parameters": {"classification": 11}}]
    body = question([ENCODED] * 4, [4, 1], outputs=asked)
    for offered, encoding in (
        ("deflate, gzip", "deflate"),
        ("gzip;q=0", None),
        ("gzip; q=0.000", None),
        ("br", None),
    ):
        response = post(backend_url, body, Accept_Encoding=offered)
        assert response.headers.get("Content-Encoding") == encoding
        assert response.json()["outputs"][0]["shape"] == [4, 11]


def test_async_infer(backend_url: str, client: Any) -> None:
    native = predict(backend_url)
    waiting = [client.async_infer(PHOTOS, [photo_input([PHOTO], [1])]) for _ in range(12)]
    for request in waiting:
        assert request.get_result().as_numpy("FOOD_LABEL")[0].decode() == native["prediction"]


def test_statistics_add_up(backend_url: str, client: Any) -> None:
    def figures() -> dict[str, Any]:
        model_statistics: dict[str, Any] = client.get_inference_statistics(PHOTOS, "1")["model_stats"][0]
        return model_statistics

    before = figures()
    for count in (1, 5, 1):
        client.infer(PHOTOS, [photo_input([PHOTO] * count, [count, 1])])
    with pytest.raises(InferenceServerException):
        client.infer(PHOTOS, [photo_input([b"no picture"], [1])])
    predict(backend_url)
    after = figures()
    requested = {
        name: {k: after["inference_stats"][name][k] - value[k] for k in value}
        for name, value in before["inference_stats"].items()
    }
    assert after["inference_count"] - before["inference_count"] == 8
    assert requested["success"]["count"] == 4
    assert requested["fail"]["count"] == 1
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    assert {requested[part]["count"] for part in parts} == {4}
    assert sum(requested[part]["ns"] for part in parts) == requested["success"]["ns"]
    batches = after["batch_stats"]
    executions = [batch["compute_infer"]["count"] for batch in batches]
    assert sum(executions) == after["execution_count"]
    assert (
        sum(b["batch_size"] * n for b, n in zip(batches, executions, strict=True))
        == (after["inference_count"])
    )
    assert {s["name"] for s in client.get_inference_statistics()["model_stats"]} == {PHOTOS, TENSORS}


def test_errors_reach_the_client(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="there is no model 'nothing'"):
        client.infer("nothing", [photo_input([PHOTO], [1])])
    with pytest.raises(InferenceServerException, match=r"version '7' of food_classifier"):
        client.infer(PHOTOS, [photo_input([PHOTO], [1])], model_version="7")
    with pytest.raises(InferenceServerException, match="element 1: not a JPEG"):
        client.infer(PHOTOS, [photo_input([PHOTO, b"\0no picture"], [2, 1])])
    with pytest.raises(InferenceServerException, match="has no input 'input'"):
        client.infer(PHOTOS, [tensor_input(normalised())])
    with pytest.raises(InferenceServerException, match="SERVING_ADMIN_KEY"):
        client.load_model(PHOTOS)
    with pytest.raises(InferenceServerException, match="1 to 4096 inputs"):
        client.infer(PHOTOS, [photo_input([b"x"] * 4097, [4097, 1])])
    broken = normalised()
    broken[:] = np.inf
    as_json = [triton.InferRequestedOutput("output", binary_data=False)]
    with pytest.raises(InferenceServerException, match="not finite"):
        client.infer(TENSORS, [tensor_input(broken)], outputs=as_json)
    logits = client.infer(TENSORS, [tensor_input(broken)]).as_numpy("output")
    assert not np.isfinite(logits).all()


def test_what_is_not_offered_is_unknown(backend_url: str, client: Any) -> None:
    calls = [
        client.get_system_shared_memory_status,
        client.get_cuda_shared_memory_status,
        client.unregister_system_shared_memory,
        partial(client.unregister_cuda_shared_memory, "x"),
        partial(client.register_system_shared_memory, "x", "/x", 16),
        partial(client.register_cuda_shared_memory, "x", b"YQ==", 0, 16),
        client.get_trace_settings,
        partial(client.update_trace_settings, PHOTOS),
        client.get_log_settings,
        partial(client.update_log_settings, {}),
    ]
    for call in calls:
        with pytest.raises(InferenceServerException) as caught:
            call()
        assert caught.value.status() == "404"
    generate = requests.post(f"{backend_url}/v2/models/{PHOTOS}/generate", json={}, timeout=10)
    check_error(generate, 404, "Not Found")


def test_errors_of_the_paths(backend_url: str) -> None:
    base = f"{backend_url}/v2"
    check_error(requests.get(f"{base}/nothing", timeout=10), 404, "Not Found")
    check_error(requests.get(f"{base}/models/x/stats", timeout=10), 404, "no model")
    check_error(requests.get(f"{base}/models/{PHOTOS}/infer", timeout=10), 405, "Method")
    check_error(requests.put(f"{base}/health/live", timeout=10), 405, "Method")
    check_error(post(backend_url, b"x" * (21 * 2**20)), 413, "20971520 bytes")
    check_error(post(backend_url, question(), X_Request_Timeout_Ms="no"), 400, "whole number")


def bomb(encoding: str) -> bytes:
    """A small body that unpacks to 64 MiB."""
    stream = zlib.compressobj(9, wbits=zlib.MAX_WBITS | (16 if encoding == "gzip" else 0))
    block = bytes(2**24)
    return b"".join([*(stream.compress(block) for _ in range(4)), stream.flush()])


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bombs_are_refused(backend_url: str, encoding: str) -> None:
    response = post(backend_url, bomb(encoding), Content_Encoding=encoding)
    check_error(response, 413, "decompresses to more than 20971520 bytes")


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"not gzip", "gzip", 400),
        (gzip.compress(b"{}", mtime=0)[:-5], "gzip", 400),
        (gzip.compress(b"{}", mtime=0) + b"more", "gzip", 400),
        (zlib.compress(b"{}"), "gzip", 400),
        (b"{}", "br", 415),
        (b"{}", "gzip, gzip", 415),
    ],
)
def test_broken_compression(backend_url: str, body: bytes, encoding: str, status: int) -> None:
    check_error(post(backend_url, body, Content_Encoding=encoding), status, "")


FLOATS = {"name": "input", "datatype": "FP32", "shape": [1, 3, 224, 224]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"inputs": ' + b"[" * 100_000, "not JSON"),
        ([], "does not match the schema"),
        ({}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"inputs": [{}] * 9}, "inputs"),
        (question(inputs=None), "inputs"),
        ({"inputs": question()["inputs"] * 2}, "one input"),
        (question(shape=[]) | {"inputs": [{**question()["inputs"][0], "shape": []}]}, "shape"),
        (question(shape=[-1]), "shape"),
        (question(shape=[2**63, 2**63]), "shape"),
        (question(shape=[0]), "1 to 4096"),
        (question(shape=[10**9]), "1 to 4096"),
        (question(shape=[1, 2]), "shape"),
        (question(shape=[1] * 9), "shape"),
        (question(shape=[1.5]), "shape"),
        (question(shape=[2]), "1 elements"),
        (question(data=[1]), "does not match the schema"),
        (question(data=[[["x"]]]), "nested"),
        (question(data="x"), "does not match the schema"),
        (question(data={}), "does not match the schema"),
        (question(data=[None]), "does not match the schema"),
        (question(data=["%%%"]), "base64"),
        (question(data=["AAAA"]), "not a JPEG"),
        (question(parameters={"triton_enable": 1}), "reserved"),
        (question(parameters={"timeout": -1}), "timeout"),
        (question(parameters={"timeout": "soon"}), "timeout"),
        (question(parameters={"timeout": 1e6}), "timeout"),
        (question(parameters={"timeout": True}), "timeout"),
        (question(parameters={"binary_data_output": 1}), "binary_data_output"),
        (question(parameters={"x": {"y": 1}}), "does not match the schema"),
        (question(parameters={str(number): 1 for number in range(1000)}), "8192 bytes"),
        (question(data=[[]] * 1000), "more than the 1 elements"),
        (question(outputs=[{"name": "X"}]), "no output"),
        (question(outputs=[{"name": "FOOD_LABEL"}] * 2), "twice"),
        (question(outputs=[{"name": "PROBABILITY", "parameters": {"classification": -1}}]), "classif"),
        (question(outputs=[{"name": "FOOD_LABEL", "parameters": {"classification": 1}}]), "classif"),
        (question(outputs=[{"name": "FOOD_LABEL", "parameters": {"binary_data": 3}}]), "binary_data"),
        (
            question(outputs=[{"name": "FOOD_LABEL", "parameters": {"shared_memory_region": "x"}}]),
            "shared memory",
        ),
    ],
)
def test_hostile_json(backend_url: str, body: Any, words: str) -> None:
    check_error(post(backend_url, body), 400, words)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ({**FLOATS, "data": [1, 2, 3]}, "3 numbers"),
        ({**FLOATS, "data": [[[[]]] * 1000]}, "input takes FP32"),
        ({**FLOATS, "data": []}, "empty"),
        ({**FLOATS, "data": [{"b64": "AAAA"}]}, "b64"),
        ({**FLOATS, "data": None}, "neither data"),
        ({**FLOATS, "data": ["1"] * (3 * 224 * 224)}, "not text"),
        ({**FLOATS, "data": [True] * (3 * 224 * 224)}, "does not match the schema"),
        ({**FLOATS, "data": [[1.0], [1.0, 2.0]]}, "nested like"),
        ({**FLOATS, "data": [[[[1.0], [1.0] * (3 * 224 * 224 - 1)]]]}, "different lengths"),
        ({**FLOATS, "shape": [3, 224, 224], "data": [[[1.0] * (3 * 224 * 224)]]}, "shape"),
        ({**FLOATS, "datatype": "FP64", "data": [1.0]}, "FP32, not 'FP64'"),
        ({**FLOATS, "shape": [1, 3, 224, 225], "data": [1.0]}, "shape"),
        ({**FLOATS, "data": [1e39] * (3 * 224 * 224)}, "input has a number outside the range of FP32"),
        ({**FLOATS, "data": [10**400] * 2}, ""),
        ({**FLOATS, "data": [3e38, -3e38] * (3 * 224 * 112)}, "the output of"),
        (FLOATS, "neither data"),
    ],
)
def test_hostile_numbers(backend_url: str, tensor: dict[str, Any], words: str) -> None:
    check_error(post(backend_url, {"inputs": [tensor]}, TENSORS), 400, words)


def with_tail(tensor: dict[str, Any], tail: bytes, **parameters: Any) -> tuple[bytes, str]:
    """A body with something binary after its JSON, and the JSON's length."""
    head = json.dumps({"inputs": [{**tensor, "parameters": parameters}]}).encode()
    return head + tail, str(len(head))


BYTES = {"name": "INPUT_IMAGE", "datatype": "BYTES", "shape": [1, 1]}


@pytest.mark.parametrize(
    ("model", "tensor", "tail", "size"),
    [
        (PHOTOS, BYTES, b"", 0),
        (PHOTOS, BYTES, b"\x05\0\0", 3),
        (PHOTOS, BYTES, b"\xff\xff\xff\xffabc", 7),
        (PHOTOS, BYTES, b"\x01\0\0\0ab", 6),
        (PHOTOS, BYTES, b"\x01\0\0\0a", 99),
        (PHOTOS, BYTES, b"\x01\0\0\0a", -5),
        (PHOTOS, BYTES, b"\x01\0\0\0a", "5"),
        (PHOTOS, {**BYTES, "shape": [2, 1]}, b"\x01\0\0\0a", 5),
        (PHOTOS, {**BYTES, "data": ["x"]}, b"\x01\0\0\0a", 5),
        (TENSORS, FLOATS, bytes(100), 100),
        (TENSORS, FLOATS, bytes(602_113), 602_113),
        (TENSORS, {**FLOATS, "datatype": "BYTES"}, bytes(602_112), 602_112),
        (TENSORS, FLOATS, bytes(602_112), 2**62),
    ],
)
def test_hostile_binary_parts(
    backend_url: str, model: str, tensor: dict[str, Any], tail: bytes, size: Any
) -> None:
    body, length = with_tail(tensor, tail, binary_data_size=size)
    headers = {JSON_LENGTH.replace("-", "_"): length}
    check_error(post(backend_url, body, model, **headers), 400, "")


@pytest.mark.parametrize("length", ["-1", "x", "99999999999999", "1e3", "", "2", "100000"])
def test_hostile_header_lengths(backend_url: str, length: str) -> None:
    headers = {JSON_LENGTH.replace("-", "_"): length}
    check_error(post(backend_url, question(), **headers), 400, "")


def test_unclaimed_bytes_are_refused(backend_url: str) -> None:
    head = json.dumps(question()).encode()
    headers = {JSON_LENGTH.replace("-", "_"): str(len(head))}
    check_error(post(backend_url, head + b"more", **headers), 400, "no input claims them")
    for wrong in (b"", bytes(100)):
        model = TENSORS if wrong else PHOTOS
        check_error(post(backend_url, wrong, model, **{JSON_LENGTH.replace("-", "_"): "0"}), 400, "")


def test_the_documented_example_works(backend_url: str) -> None:
    """Swagger sends it as it stands there, to the model that it fills in."""
    paths = requests.get(f"{backend_url}/openapi.json", timeout=10).json()["paths"]
    operation = paths["/v2/models/{model}/infer"]["post"]
    model = operation["parameters"][0]["examples"]["this model"]["value"]
    body = operation["requestBody"]["content"]["application/json"]["example"]
    answer = requests.post(f"{backend_url}/v2/models/{model}/infer", json=body, timeout=10)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model_name"] == model
