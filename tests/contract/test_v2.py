"""The Open Inference Protocol on both backends, with Triton's clients for HTTP and gRPC, and by hand."""

import base64
import json
import queue
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest
import requests
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.image.decode import ImageDecoder
from tests import pictures

PHOTO = pictures.jpeg()
ENCODED = base64.b64encode(PHOTO).decode()
PHOTOS, TENSORS = "food_classifier", "food_classifier_onnx"
JSON_LENGTH = "Inference-Header-Content-Length"
NUMBERS = 3 * 224 * 224


class Triton:
    """Triton's client for one of its protocols; over HTTP, tensors are binary or JSON."""

    def __init__(self, kind: str, target: str) -> None:
        self.is_http = kind != "grpc"
        self.library: Any = triton_http if self.is_http else triton_grpc  # tritonclient has no types
        options = {"concurrency": 4} if self.is_http else {}
        self.client = self.library.InferenceServerClient(target, **options)
        self.binary = {"binary_data": kind == "http"} if self.is_http else {}

    def photos(self, values: list[bytes], shape: list[int]) -> list[Any]:
        """Returns the input as the tutorial makes it; JSON carries base64."""
        if self.binary.get("binary_data") is False:
            values = [base64.b64encode(value) for value in values]
        tensor = self.library.InferInput("INPUT_IMAGE", shape, "BYTES")
        return [tensor.set_data_from_numpy(np.array(values, object).reshape(shape), **self.binary)]

    def tensors(self, values: np.ndarray) -> list[Any]:
        tensor = self.library.InferInput("input", list(values.shape), "FP32")
        return [tensor.set_data_from_numpy(values, **self.binary)]

    def output(self, name: str, **options: Any) -> Any:
        return self.library.InferRequestedOutput(name, **self.binary, **options)

    def infer(self, model: str, inputs: list[Any], *outputs: Any, **options: Any) -> Any:
        """Returns the client's result; without `outputs`, all are requested."""
        if self.is_http and not outputs:
            names = ["output"] if model == TENSORS else ["FOOD_LABEL", "PROBABILITY"]
            outputs = tuple(map(self.output, names))
        return self.client.infer(model, inputs, outputs=[*outputs] or None, **options)

    def about(self, what: str, *arguments: str) -> Any:
        """Returns what a `get_` method returns, as JSON."""
        options = {} if self.is_http else {"as_json": True}
        return getattr(self.client, f"get_{what}")(*arguments, **options)

    def status(self, call: Callable[[], Any]) -> str:
        with pytest.raises(InferenceServerException) as caught:
            call()
        return f"{caught.value.status()} {caught.value.message()}"


@pytest.fixture(params=["http", "json", "grpc"])
def triton(request: pytest.FixtureRequest, backend_url: str, grpc_target: str) -> Iterator[Triton]:
    target = grpc_target if request.param == "grpc" else backend_url.removeprefix("http://")
    triton = Triton(request.param, target)
    yield triton
    triton.client.close()


def texts(array: np.ndarray) -> list[str]:
    """Returns the elements of a BYTES tensor, which the client has as bytes or as text."""
    return [text.decode() if isinstance(text, bytes) else text for text in array.ravel().tolist()]


def normalised() -> np.ndarray:
    """The test photo as a client prepares it: float32 [1, 3, height, width]."""
    pipeline = Model.read(Settings().model_dir).description.pipeline
    pixels = ImageDecoder(pipeline, 50_000_000).decode(PHOTO)
    photo = (pixels / 255 - np.array(pipeline.mean)) / np.array(pipeline.std)
    return np.ascontiguousarray(photo.transpose(2, 0, 1)[np.newaxis], np.float32)


def predict(url: str) -> list[dict[str, Any]]:
    """What the native API says of the photo: all classes, best first."""
    answer = requests.post(f"{url}/predict?top_k=11", data=PHOTO, timeout=60).json()
    top: list[dict[str, Any]] = answer["top"]
    return top


def test_health_and_metadata(triton: Triton) -> None:
    client = triton.client
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(PHOTOS)
    assert client.is_model_ready(TENSORS, "1")
    assert not client.is_model_ready(PHOTOS, "2")
    assert not client.is_model_ready("nothing")
    server = triton.about("server_metadata")
    assert {"statistics", "binary_tensor_data", "classification"} <= set(server["extensions"])
    model = triton.about("model_metadata", TENSORS)
    assert model["versions"] == ["1"]
    shapes = {
        tensor["name"]: [*map(int, tensor["shape"])] for tensor in (*model["inputs"], *model["outputs"])
    }
    assert shapes == {"input": [-1, 3, 224, 224], "output": [-1, 11]}


def test_the_configuration_of_a_tensor_of_photos(triton: Triton) -> None:
    content = triton.about("model_config", TENSORS)
    (tensor,) = (content if triton.is_http else content["config"])["input"]
    assert (tensor["format"], [*map(int, tensor["dims"])]) == ("FORMAT_NCHW", [3, 224, 224])


@pytest.mark.parametrize("shape", [[1], [1, 1], [3], [3, 1]])
@pytest.mark.parametrize("model", [PHOTOS, "food11"])
def test_photos(backend_url: str, triton: Triton, shape: list[int], model: str) -> None:
    best = predict(backend_url)[0]
    result = triton.infer(model, triton.photos([PHOTO] * shape[0], shape), request_id="q1")
    response = result.get_response()
    assert (response["id"] if triton.is_http else response.id) == "q1"
    labels, probabilities = result.as_numpy("FOOD_LABEL"), result.as_numpy("PROBABILITY")
    assert labels.shape == probabilities.shape == tuple(shape)
    assert set(texts(labels)) == {best["label"]}
    assert probabilities.ravel().tolist() == pytest.approx([best["probability"]] * shape[0], abs=1e-4)


def test_tensors_get_the_class_of_predict(backend_url: str, triton: Triton) -> None:
    best = predict(backend_url)[0]
    labels = requests.get(f"{backend_url}/model", timeout=60).json()["labels"]
    batch = np.concatenate([normalised(), -normalised()])
    logits = triton.infer(TENSORS, triton.tensors(batch)).as_numpy("output")
    assert (logits.shape, logits.dtype) == ((2, 11), np.float32)
    probabilities = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert labels[int(logits[0].argmax())] == best["label"]
    assert probabilities.max() == pytest.approx(best["probability"], abs=1e-3)
    single = triton.infer(TENSORS, triton.tensors(batch[:1])).as_numpy("output")
    np.testing.assert_allclose(single, logits[:1], atol=1e-3)


def test_classification(backend_url: str, triton: Triton) -> None:
    top = predict(backend_url)
    labels = requests.get(f"{backend_url}/model", timeout=60).json()["labels"]
    asked = triton.output("PROBABILITY", class_count=3)
    best = triton.infer(PHOTOS, triton.photos([PHOTO] * 2, [2, 1]), asked).as_numpy("PROBABILITY")
    assert best.shape == (2, 3)
    for text, score in zip(texts(best[0]), top, strict=False):
        value, index, label = text.split(":")
        assert float(value) == pytest.approx(score["probability"], abs=1e-4)
        assert labels[int(index)] == label == score["label"]
    asked = triton.output("output", class_count=99)
    logits = triton.infer(TENSORS, triton.tensors(normalised()), asked).as_numpy("output")
    assert [text.split(":")[2] for text in texts(logits[0])] == [score["label"] for score in top]


@pytest.mark.parametrize("count", [1, 3])
def test_top_k(backend_url: str, triton: Triton, count: int) -> None:
    top, inputs = predict(backend_url), triton.photos([PHOTO] * count, [count, 1])
    for asked, listed in ((2, 2), (11, 11), (99, 11)):
        result = triton.infer(PHOTOS, inputs, parameters={"top_k": asked})
        labels, probabilities = result.as_numpy("FOOD_LABEL"), result.as_numpy("PROBABILITY")
        assert labels.shape == probabilities.shape == (count, listed)
        assert texts(labels[-1]) == [score["label"] for score in top[:listed]]
        wanted = [score["probability"] for score in top[:listed]]
        assert probabilities[-1].tolist() == pytest.approx(wanted, abs=1e-4)
    best = triton.infer(PHOTOS, inputs, parameters={"top_k": 1})
    assert best.as_numpy("FOOD_LABEL").shape == (count, 1)
    classes = triton.output("PROBABILITY", class_count=3)
    both = triton.infer(PHOTOS, inputs, classes, parameters={"top_k": 5})
    assert both.as_numpy("PROBABILITY").shape == (count, 3)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compression(triton: Triton, encoding: str) -> None:
    names = ("request", "response") if triton.is_http else ("",)
    options = {f"{name}_compression_algorithm".lstrip("_"): encoding for name in names}
    batch = np.repeat(normalised(), 2, axis=0)
    result = triton.infer(TENSORS, triton.tensors(batch), **options)
    assert result.as_numpy("output").shape == (2, 11)


def test_compressed_answers_say_so(backend_url: str) -> None:
    asked = [{"name": "PROBABILITY", "parameters": {"classification": 11}}]
    body = question([ENCODED] * 4, [4, 1], outputs=asked)
    offers = {"deflate, gzip": "deflate", "gzip;q=0": None, "gzip; q=0.000": None, "br": None}
    for offered, encoding in offers.items():
        response = post(backend_url, body, Accept_Encoding=offered)
        assert response.headers.get("Content-Encoding") == encoding
        assert response.json()["outputs"][0]["shape"] == [4, 11]


def test_statistics_add_up(backend_url: str, triton: Triton) -> None:
    def counts() -> dict[str, tuple[int, int]]:
        stats = triton.about("inference_statistics", PHOTOS, "1")["model_stats"][0]
        parts = stats["inference_stats"]
        figures = {
            name: (int(part.get("count", 0)), int(part.get("ns", 0))) for name, part in parts.items()
        }
        executions = [
            (int(b["batch_size"]), int(b["compute_infer"]["count"])) for b in stats["batch_stats"]
        ]
        assert sum(count for _, count in executions) == int(stats["execution_count"])
        items = sum(size * count for size, count in executions)  # and those that nobody waited for
        return figures | {"inferences": (int(stats["inference_count"]), 0), "items": (items, 0)}

    triton.status(lambda: triton.infer(PHOTOS, triton.photos([b"no picture"], [1])))
    before = counts()
    for count in (1, 5, 1):
        triton.infer(PHOTOS, triton.photos([PHOTO] * count, [count, 1]))
    triton.status(lambda: triton.infer(PHOTOS, triton.photos([b"no picture"], [1])))
    predict(backend_url)
    after = counts()
    grown = {name: (now[0] - before[name][0], now[1] - before[name][1]) for name, now in after.items()}
    assert grown["items"] == grown["inferences"] == (8, 0)
    assert (grown["success"][0], grown["fail"][0]) == (4, 1)
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    assert {grown[part][0] for part in parts} == {4}
    assert sum(grown[part][1] for part in parts) == grown["success"][1]
    listed = triton.about("inference_statistics")["model_stats"]
    assert {row["name"] for row in listed} == {PHOTOS, TENSORS}


def test_errors_reach_the_client(triton: Triton) -> None:
    photo, broken = triton.photos([PHOTO], [1]), np.full_like(normalised(), np.inf)
    infer, client = triton.infer, triton.client
    calls = {
        ("404", "NOT_FOUND", "nothing"): partial(infer, "nothing", photo),
        ("404", "NOT_FOUND", "version '7'"): partial(infer, PHOTOS, photo, model_version="7"),
        ("400", "INVALID_ARGUMENT", "element 1: not a JPEG"): partial(
            infer, PHOTOS, triton.photos([PHOTO, b"\0no picture"], [2, 1])
        ),
        ("400", "INVALID_ARGUMENT", "has no input 'input'"): partial(
            infer, PHOTOS, triton.tensors(np.zeros(1, np.float32)), triton.output("FOOD_LABEL")
        ),
        ("400", "INVALID_ARGUMENT", "1 to 4096 inputs"): partial(
            infer, PHOTOS, triton.photos([b"x"] * 4097, [4097, 1])
        ),
        ("501", "UNIMPLEMENTED", "SERVING_ADMIN_KEY"): partial(client.load_model, PHOTOS),
        ("501", "UNIMPLEMENTED", "ADMIN_KEY"): partial(client.unload_model, PHOTOS),
    }
    for (status, code, words), call in calls.items():
        said = triton.status(call)
        assert said.startswith((status, f"StatusCode.{code}"))
        assert words in said
    if triton.binary.get("binary_data") is not False:
        logits = infer(TENSORS, triton.tensors(broken)).as_numpy("output")
        assert not np.isfinite(logits).all()
        if triton.is_http:
            as_json = triton.library.InferRequestedOutput("output", binary_data=False)
            assert "not finite" in triton.status(
                partial(infer, TENSORS, triton.tensors(broken), as_json)
            )


def test_what_is_not_offered_is_unknown(triton: Triton, backend_url: str) -> None:
    client = triton.client
    of_model = (PHOTOS,) if triton.is_http else ()
    calls = [
        client.get_system_shared_memory_status,
        client.get_cuda_shared_memory_status,
        client.unregister_system_shared_memory,
        partial(client.unregister_cuda_shared_memory, "x"),
        partial(client.register_system_shared_memory, "x", "/x", 16),
        partial(client.register_cuda_shared_memory, "x", b"YQ==", 0, 16),
        client.get_trace_settings,
        partial(client.update_trace_settings, *of_model),
        client.get_log_settings,
        partial(client.update_log_settings, {}),
    ]
    for call in calls:
        assert triton.status(call).startswith(("404", "StatusCode.UNIMPLEMENTED"))
    generate = requests.post(f"{backend_url}/v2/models/{PHOTOS}/generate", json={}, timeout=60)
    check_error(generate, 404, "there is no path /v2/")


# over HTTP, by hand


def post(url: str, body: Any, model: str = PHOTOS, **headers: str) -> requests.Response:
    """A request by hand; `body` is JSON, or bytes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return requests.post(f"{url}/v2/models/{model}/infer", data=data, headers=named, timeout=60)


def question(data: Any = None, shape: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    """JSON for one photo, or with something else in its place."""
    tensor = {"name": "INPUT_IMAGE", "datatype": "BYTES", "shape": shape or [1, 1]}
    return {"inputs": [{**tensor, "data": [ENCODED] if data is None else data}], **more}


def check_error(response: requests.Response, status: int, words: str) -> None:
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    assert words in body["error"]
    assert ".py" not in response.text


def test_errors_of_the_paths(backend_url: str) -> None:
    base = f"{backend_url}/v2"
    check_error(requests.get(f"{base}/nothing", timeout=60), 404, "there is no path /v2/")
    check_error(requests.get(f"{base}/models/x/stats", timeout=60), 404, "no model")
    check_error(requests.get(f"{base}/models/{PHOTOS}/infer", timeout=60), 405, "; use POST")
    check_error(requests.put(f"{base}/health/live", timeout=60), 405, "; use GET")
    check_error(post(backend_url, b"x" * (21 * 2**20)), 413, "20971520 bytes")
    assert requests.post(f"{base}/repository/index", b" " * 65537, timeout=60).status_code == 413
    check_error(post(backend_url, question(), X_Request_Timeout_Ms="no"), 400, "whole number")


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
        ({"inputs": question()["inputs"] * 2}, "INPUT_IMAGE, each once"),
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
        *((question(parameters={"top_k": value}), "top_k") for value in (-1, "5", True, 2.5, 2**40)),
        (question(parameters={"triton_enable": 1}), "reserved"),
        *((question(parameters={"timeout": value}), "timeout") for value in (-1, "soon", 1e6, True)),
        (question(parameters={"binary_data_output": 1}), "binary_data_output"),
        (question(parameters=["x"]), "does not match the schema"),
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
        ({**FLOATS, "data": ["1"] * NUMBERS}, "not text"),
        ({**FLOATS, "data": [True] * NUMBERS}, "does not match the schema"),
        ({**FLOATS, "data": [[1.0], [1.0, 2.0]]}, "nested like"),
        ({**FLOATS, "data": [[[[1.0], [1.0] * (NUMBERS - 1)]]]}, "different lengths"),
        ({**FLOATS, "shape": [3, 224, 224], "data": [[[1.0] * NUMBERS]]}, "shape"),
        ({**FLOATS, "datatype": "FP64", "data": [1.0]}, "FP32, not 'FP64'"),
        ({**FLOATS, "shape": [1, 3, 224, 225], "data": [1.0]}, "shape"),
        ({**FLOATS, "data": [1e39] * NUMBERS}, "input has a number outside the range of FP32"),
        ({**FLOATS, "data": [10**400] * 2}, ""),
        ({**FLOATS, "data": [3e38, -3e38] * (NUMBERS // 2)}, "the output of"),
        (FLOATS, "neither data"),
    ],
)
def test_hostile_numbers(backend_url: str, tensor: dict[str, Any], words: str) -> None:
    check_error(post(backend_url, {"inputs": [tensor]}, TENSORS), 400, words)


def test_unclaimed_bytes_are_refused(backend_url: str) -> None:
    head = json.dumps(question()).encode()
    headers = {JSON_LENGTH.replace("-", "_"): str(len(head))}
    check_error(post(backend_url, head + b"more", **headers), 400, "no input claims them")
    for wrong in (b"", bytes(100)):
        model = TENSORS if wrong else PHOTOS
        check_error(post(backend_url, wrong, model, **{JSON_LENGTH.replace("-", "_"): "0"}), 400, "")


# over gRPC, by hand


def over_grpc(
    target: str, request: bytes, path: str = "inference.GRPCInferenceService/ModelInfer"
) -> bytes:
    with grpc.insecure_channel(target) as channel:
        answer: bytes = channel.unary_unary(f"/{path}")(request, timeout=60)
        return answer


def check_refused(target: str, request: bytes, code: str, **options: str) -> None:
    """The answer to a message is this error, without a trace of the code behind it."""
    with pytest.raises(grpc.RpcError) as caught:
        over_grpc(target, request, **options)
    assert caught.value.code().name == code
    assert ".py" not in caught.value.details()


def test_grpcs_own_health_service(grpc_target: str) -> None:
    check, name = "grpc.health.v1.Health/Check", b"inference.GRPCInferenceService"
    for message in (b"", b"\x0a" + bytes([len(name)]) + name):
        assert over_grpc(grpc_target, message, check) == b"\x08\x01"  # SERVING
    check_refused(grpc_target, b"\x0a\x01x", "NOT_FOUND", path=check)
    check_refused(grpc_target, b"\xff", "INVALID_ARGUMENT", path=check)
    check_refused(grpc_target, b"", "UNIMPLEMENTED", path="grpc.health.v1.Health/Watch")


def tensor(**more: Any) -> Any:
    """The photo model's input, with something else in it."""
    return {"name": "INPUT_IMAGE", "datatype": "BYTES", "shape": [1], **more}


def test_what_tritons_clients_always_send_is_no_error(grpc_target: str) -> None:
    request = pb.ModelInferRequest(
        model_name=PHOTOS,
        inputs=[tensor(contents={"bytes_contents": [PHOTO]})],
        parameters={"triton_enable_empty_final_response": {"bool_param": True}},
    )
    answer = over_grpc(grpc_target, request.SerializeToString())
    assert len(pb.ModelInferResponse.FromString(answer).raw_output_contents) == 2


@pytest.fixture
def stream(grpc_target: str) -> Iterator[tuple[Any, queue.Queue[Any]]]:
    """A client whose stream is open, and the stream's answers."""
    answers: queue.Queue[Any] = queue.Queue()
    client = triton_grpc.InferenceServerClient(grpc_target)
    client.start_stream(lambda result, error: answers.put(error or result))
    yield client, answers
    client.close()


def test_a_stream_answers_in_order(stream: tuple[Any, queue.Queue[Any]], grpc_target: str) -> None:
    client, answers = stream
    triton, noise = Triton("grpc", grpc_target), np.random.default_rng(7)
    counts = {str(number): 1 + number % 3 for number in range(20)}
    for name, count in counts.items():
        values = noise.normal(size=(count, 3, 224, 224)).astype(np.float32)
        options = {"request_id": name, "enable_empty_final_response": True}
        client.async_stream_infer(TENSORS, triton.tensors(values), **options)
    for name, count in counts.items():
        result = answers.get(timeout=60)
        assert result.get_response().id == name
        assert result.get_response().parameters["triton_final_response"].bool_param
        assert result.as_numpy("output").shape == (count, 11)
    client.stop_stream()


def test_an_error_does_not_end_a_stream(stream: tuple[Any, queue.Queue[Any]], grpc_target: str) -> None:
    client, answers = stream
    triton = Triton("grpc", grpc_target)
    for model, data in (("nothing", PHOTO), (PHOTOS, b"\0"), (PHOTOS, PHOTO)):
        client.async_stream_infer(model, triton.photos([data], [1]))
    client.stop_stream()  # waits for what is under way
    unknown, unreadable, right = (answers.get(timeout=60) for _ in range(3))
    assert "nothing" in str(unknown)
    assert "not a JPEG" in str(unreadable)
    assert right.as_numpy("FOOD_LABEL").shape == (1,)


def test_a_stream_of_what_is_no_message(grpc_target: str) -> None:
    with grpc.insecure_channel(grpc_target) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = [
            pb.ModelStreamInferResponse.FromString(message) for message in call(iter([b"\xff" * 9, b""]))
        ]
    assert [bool(answer.error_message) for answer in answers] == [True, True]


def test_a_request_of_a_stream_is_named_although_it_is_not_admitted(grpc_target: str) -> None:
    request = pb.ModelInferRequest(id="mine", model_name=PHOTOS)
    with grpc.insecure_channel(grpc_target) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        messages = iter([request.SerializeToString()])
        (message,) = call(messages, metadata=[("x-priority", "urgent")])
    answer = pb.ModelStreamInferResponse.FromString(message)
    assert "X-Priority" in answer.error_message
    assert answer.infer_response.id == "mine"


HOSTILE = [
    {},
    {"inputs": [tensor()] * 2},
    {"inputs": [tensor(name="x")]},
    {"inputs": [tensor(datatype="FP32")]},
    {"inputs": [tensor(shape=[])]},
    {"inputs": [tensor(shape=[-1])]},
    {"inputs": [tensor(shape=[2**62, 2**62])]},
    {"inputs": [tensor(shape=[0])]},
    {"inputs": [tensor(shape=[1] * 1000)]},
    {"inputs": [tensor()]},
    {"inputs": [tensor(contents={"bytes_contents": [b"a", b"b"]})]},
    {"inputs": [tensor(contents={"fp32_contents": [1.0]})]},
    {"inputs": [tensor(contents={"int_contents": [1]})]},
    {"inputs": [tensor(contents={"bytes_contents": [b"a"]})], "raw_input_contents": [b"a"]},
    {"inputs": [tensor()], "raw_input_contents": [b""]},
    {"inputs": [tensor()], "raw_input_contents": [b"\xff\xff\xff\xffa"]},
    {"inputs": [tensor()], "raw_input_contents": [b"\1\0\0\0ab"]},
    {"inputs": [tensor()], "raw_input_contents": [b"\1\0\0\0a"] * 2},
    {"inputs": [tensor()], "outputs": [{"name": "x"}]},
    {"inputs": [tensor()], "outputs": [{"name": "PROBABILITY"}] * 1000},
    {"inputs": [tensor()], "parameters": {"triton_x": {"bool_param": True}}},
    {"inputs": [tensor()], "parameters": {"timeout": {"string_param": "soon"}}},
    {"inputs": [tensor(parameters={"shared_memory_region": {"string_param": "x"}})]},
]


@pytest.mark.parametrize("fields", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_messages(grpc_target: str, fields: dict[str, Any]) -> None:
    request = pb.ModelInferRequest(model_name=PHOTOS, **fields).SerializeToString()
    check_refused(grpc_target, request, "INVALID_ARGUMENT")


@pytest.mark.parametrize("size", [0, 100, 602_108, 602_113])
def test_tensors_of_a_wrong_length(grpc_target: str, size: int) -> None:
    floats = {"name": "input", "datatype": "FP32", "shape": [1, 3, 224, 224]}
    request = pb.ModelInferRequest(model_name=TENSORS, inputs=[floats], raw_input_contents=[bytes(size)])
    check_refused(grpc_target, request.SerializeToString(), "INVALID_ARGUMENT")


def test_what_is_no_message_or_too_large_a_one(grpc_target: str) -> None:
    check_refused(grpc_target, b"\xff" * 50, "INVALID_ARGUMENT")
    check_refused(grpc_target, bytes(19 * 2**20), "INVALID_ARGUMENT")
    check_refused(grpc_target, bytes(21 * 2**20), "RESOURCE_EXHAUSTED")
