"""The Open Inference Protocol in gRPC, on both backends, with Triton's own client and by hand."""

import json
import queue
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest
import requests
from tritonclient import grpc as triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from tests import pictures

PHOTO = pictures.jpeg()
PHOTOS, TENSORS = "food_classifier", "food_classifier_onnx"


@pytest.fixture
def client(grpc_target: str) -> Iterator[Any]:  # tritonclient has no types
    """Triton's client."""
    made = triton.InferenceServerClient(grpc_target)
    yield made
    made.close()


def photo_input(values: list[bytes], shape: list[int]) -> Any:
    """As the tutorial makes it."""
    tensor = triton.InferInput("INPUT_IMAGE", shape, "BYTES")
    return tensor.set_data_from_numpy(np.array(values, object).reshape(shape))


def tensor_input(values: np.ndarray) -> Any:
    """Normalised photos."""
    return triton.InferInput("input", list(values.shape), "FP32").set_data_from_numpy(values)


def noise(count: int) -> np.ndarray:
    """Tensors of the right shape."""
    return np.random.default_rng(7).normal(size=(count, 3, 224, 224)).astype(np.float32)


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("food11", "1")
    assert not client.is_model_ready("food11", "2")
    assert not client.is_model_ready("nothing")
    server = client.get_server_metadata(as_json=True)
    assert {"statistics", "classification"} <= set(server["extensions"])
    model = client.get_model_metadata(TENSORS)
    assert [list(tensor.shape) for tensor in (*model.inputs, *model.outputs)] == [
        [-1, 3, 224, 224],
        [-1, 11],
    ]
    config = client.get_model_config(PHOTOS).config
    assert config.max_batch_size == 4096
    assert config.HasField("dynamic_batching")
    assert config.input[0].data_type == 13
    assert (
        client.get_model_config(TENSORS, as_json=True)["config"]["input"][0]["format"] == "FORMAT_NCHW"
    )
    assert list(config.version_policy.specific.versions) == [1]
    assert json.loads(config.parameters["model.json"].string_value)["name"] == "food11"
    index = client.get_model_repository_index().models
    assert {model.name for model in index} == {PHOTOS, TENSORS, "food11"}


def test_grpcs_own_health_service(grpc_target: str) -> None:
    with grpc.insecure_channel(grpc_target) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"") == b"\x08\x01"  # SERVING
        name = b"inference.GRPCInferenceService"
        assert check(b"\x0a" + bytes([len(name)]) + name) == b"\x08\x01"
        for message, code in ((b"\x0a\x01x", "NOT_FOUND"), (b"\xff", "INVALID_ARGUMENT")):
            with pytest.raises(grpc.RpcError) as caught:
                check(message)
            assert caught.value.code().name == code
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/grpc.health.v1.Health/Watch")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("shape", [[1], [2, 1]])
def test_photos(backend_url: str, client: Any, shape: list[int]) -> None:
    native = requests.post(f"{backend_url}/predict", data=PHOTO, timeout=30).json()
    result = client.infer(PHOTOS, [photo_input([PHOTO] * shape[0], shape)], request_id="q")
    assert result.get_response().id == "q"
    assert set(result.as_numpy("FOOD_LABEL").ravel().tolist()) == {native["prediction"].encode()}
    assert result.as_numpy("PROBABILITY").shape == tuple(shape)
    assert result.as_numpy("PROBABILITY").max() == pytest.approx(native["probability"], abs=1e-4)


def test_top_k(backend_url: str, client: Any) -> None:
    native = requests.post(f"{backend_url}/predict?top_k=3", data=PHOTO, timeout=30).json()["top"]
    result = client.infer(PHOTOS, [photo_input([PHOTO] * 2, [2, 1])], parameters={"top_k": 3})
    assert (
        result.as_numpy("FOOD_LABEL").tolist()
        == [[candidate["label"].encode() for candidate in native]] * 2
    )
    assert result.as_numpy("PROBABILITY").shape == (2, 3)


def test_longer_time_limits_than_the_service_allows_are_cut(client: Any) -> None:
    limits = {"client_timeout": 10**9, "timeout": 2**62, "headers": {"x-request-timeout-ms": "9" * 20}}
    result = client.infer(PHOTOS, [photo_input([PHOTO], [1])], **limits)
    assert result.as_numpy("FOOD_LABEL").shape == (1,)


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_tensors(client: Any, backend_url: str, compression: str | None) -> None:
    batch = noise(2)
    logits = client.infer(
        TENSORS, [tensor_input(batch)], compression_algorithm=compression, client_timeout=20
    ).as_numpy("output")
    data = {
        "name": "input",
        "datatype": "FP32",
        "shape": [2, 3, 224, 224],
        "data": batch.ravel().tolist(),
    }
    url = f"{backend_url}/v2/models/{TENSORS}/infer"
    http = requests.post(url, json={"inputs": [data]}, timeout=30).json()["outputs"][0]["data"]
    np.testing.assert_allclose(logits.ravel(), http, atol=1e-3)
    best = client.infer(
        TENSORS, [tensor_input(batch)], outputs=[triton.InferRequestedOutput("output", class_count=2)]
    ).as_numpy("output")
    assert [int(row[0].decode().split(":")[1]) for row in best] == logits.argmax(axis=1).tolist()


def test_what_tritons_clients_always_send_is_no_error(grpc_target: str) -> None:
    request = pb.ModelInferRequest(
        model_name=PHOTOS,
        inputs=[tensor(contents={"bytes_contents": [PHOTO]})],
        parameters={"triton_enable_empty_final_response": {"bool_param": True}},
    )
    with grpc.insecure_channel(grpc_target) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )
        assert len(call(request, timeout=30).raw_output_contents) == 2


def test_typed_numbers_are_raw_ones(grpc_target: str) -> None:
    batch = noise(1)
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 3, 224, 224]}
    typed = {**tensor, "contents": {"fp32_contents": batch.ravel().tolist()}}
    requests_ = (
        pb.ModelInferRequest(model_name=TENSORS, inputs=[typed]),
        pb.ModelInferRequest(model_name=TENSORS, inputs=[tensor], raw_input_contents=[batch.tobytes()]),
    )
    with grpc.insecure_channel(grpc_target) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )
        answers = [call(request, timeout=30).raw_output_contents[0] for request in requests_]
    logits = [np.frombuffer(answer, np.float32) for answer in answers]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-3)


def test_async_infer(client: Any) -> None:
    results: list[Any] = []
    done = threading.Semaphore(0)

    def on_result(result: Any, error: Any) -> None:
        results.append(error or result.as_numpy("FOOD_LABEL").shape)
        done.release()

    for _ in range(8):
        client.async_infer(PHOTOS, [photo_input([PHOTO], [1])], on_result)
    for _ in range(8):
        assert done.acquire(timeout=30)
    assert results == [(1,)] * 8


def test_statistics_are_those_of_http(client: Any, backend_url: str) -> None:
    client.infer(PHOTOS, [photo_input([PHOTO] * 3, [3, 1])])
    (by_grpc,) = client.get_inference_statistics(PHOTOS).model_stats
    http = requests.get(f"{backend_url}/v2/models/{PHOTOS}/stats", timeout=10).json()["model_stats"][0]
    assert by_grpc.inference_count == http["inference_count"] >= 3
    assert by_grpc.inference_stats.success.ns == http["inference_stats"]["success"]["ns"]
    assert (
        sum(b.batch_size * b.compute_infer.count for b in by_grpc.batch_stats) == by_grpc.inference_count
    )
    assert len(client.get_inference_statistics().model_stats) == 2


def test_errors_reach_the_client(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="there is no model 'nothing'") as caught:
        client.infer("nothing", [photo_input([PHOTO], [1])])
    assert caught.value.status() == "StatusCode.NOT_FOUND"
    with pytest.raises(InferenceServerException, match="element 1: not a JPEG") as caught:
        client.infer(PHOTOS, [photo_input([PHOTO, b"\0"], [2, 1])])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    with pytest.raises(InferenceServerException, match=r"UNIMPLEMENTED.*SERVING_ADMIN_KEY"):
        client.load_model(PHOTOS)
    with pytest.raises(InferenceServerException, match=r"UNIMPLEMENTED.*SERVING_ADMIN_KEY"):
        client.unload_model(PHOTOS)


def test_what_is_not_offered_is_unknown(client: Any) -> None:
    calls = [
        client.get_system_shared_memory_status,
        client.get_cuda_shared_memory_status,
        client.unregister_system_shared_memory,
        client.unregister_cuda_shared_memory,
        partial(client.register_system_shared_memory, "x", "/x", 16),
        partial(client.register_cuda_shared_memory, "x", b"YQ==", 0, 16),
        client.get_trace_settings,
        client.update_trace_settings,
        client.get_log_settings,
        partial(client.update_log_settings, {}),
    ]
    for call in calls:
        with pytest.raises(InferenceServerException, match="UNIMPLEMENTED"):
            call()


def test_a_stream_answers_in_order(client: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or result))
    wanted = {str(number): noise(1 + number % 3) for number in range(20)}
    for name, values in wanted.items():
        client.async_stream_infer(
            TENSORS, [tensor_input(values)], request_id=name, enable_empty_final_response=True
        )
    for name, values in wanted.items():
        result = answers.get(timeout=30)
        assert result.get_response().id == name
        assert result.get_response().parameters["triton_final_response"].bool_param
        assert result.as_numpy("output").shape == (len(values), 11)
    client.stop_stream()


def test_an_error_does_not_end_a_stream(client: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or result))
    client.async_stream_infer("nothing", [photo_input([PHOTO], [1])])
    client.async_stream_infer(PHOTOS, [photo_input([b"\0"], [1])])
    client.async_stream_infer(PHOTOS, [photo_input([PHOTO], [1])])
    client.stop_stream()  # waits for what is under way
    unknown, unreadable, right = (answers.get(timeout=30) for _ in range(3))
    assert "there is no model 'nothing'" in str(unknown)
    assert "not a JPEG" in str(unreadable)
    assert right.as_numpy("FOOD_LABEL").shape == (1,)


def test_a_stream_of_what_is_no_message(grpc_target: str) -> None:
    with grpc.insecure_channel(grpc_target) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = [
            pb.ModelStreamInferResponse.FromString(message) for message in call(iter([b"\xff" * 9, b""]))
        ]
    assert [bool(answer.error_message) for answer in answers] == [True, True]


def tensor(**more: Any) -> Any:
    """The photo model's input, with something else in it."""
    return {"name": "INPUT_IMAGE", "datatype": "BYTES", "shape": [1], **more}


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
    check_refused(grpc_target, request, grpc.StatusCode.INVALID_ARGUMENT)


@pytest.mark.parametrize("size", [0, 100, 602_108, 602_113])
def test_tensors_of_a_wrong_length(grpc_target: str, size: int) -> None:
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 3, 224, 224]}
    request = pb.ModelInferRequest(
        model_name=TENSORS, inputs=[tensor], raw_input_contents=[bytes(size)]
    ).SerializeToString()
    check_refused(grpc_target, request, grpc.StatusCode.INVALID_ARGUMENT)


def check_refused(target: str, request: bytes, code: grpc.StatusCode) -> None:
    """Sends bytes as a message; the answer is this error, without a trace of the code behind it."""
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=30)
    assert caught.value.code() is code
    assert ".py" not in caught.value.details()


def test_what_is_no_message_or_too_large_a_one(grpc_target: str) -> None:
    check_refused(grpc_target, b"\xff" * 50, grpc.StatusCode.INVALID_ARGUMENT)
    check_refused(grpc_target, bytes(21 * 2**20), grpc.StatusCode.RESOURCE_EXHAUSTED)
