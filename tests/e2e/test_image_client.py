"""The steps of the usual image client for Triton: what it reads of a model, and how it asks."""

import queue
from typing import Any

import numpy as np
import pytest
import requests
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.grpc import model_config_pb2

pytestmark = pytest.mark.slow

MODEL = "food_classifier_onnx"


@pytest.fixture
def service(onnx_service: tuple[str, str]) -> tuple[str, str]:
    """Where HTTP and where gRPC is spoken."""
    url, grpc_target = onnx_service
    return url.removeprefix("http://"), grpc_target


def described(client: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and configuration, as dictionaries."""
    if isinstance(client, triton_http.InferenceServerClient):
        return client.get_model_metadata(MODEL), client.get_model_config(MODEL)
    metadata = client.get_model_metadata(MODEL, as_json=True)
    return metadata, client.get_model_config(MODEL, as_json=True)["config"]


def tensor_of(client: Any, module: Any, count: int) -> Any:
    """An input of as many pictures, laid out as the description says; what does not fit is refused."""
    metadata, config = described(client)
    (image_input,), (configured,), (output,) = metadata["inputs"], config["input"], metadata["outputs"]
    assert config["max_batch_size"] >= count
    assert output["datatype"] == image_input["datatype"] == "FP32"
    assert len([size for size in map(int, output["shape"][1:]) if size > 1]) == 1
    layout = model_config_pb2.ModelInput.Format.Value(configured["format"])
    assert layout == model_config_pb2.ModelInput.FORMAT_NCHW
    channels, height, width = map(int, image_input["shape"][1:])
    assert [channels, height, width] == [int(size) for size in configured["dims"]]
    pixels = np.random.default_rng(3).uniform(-1, 1, (count, channels, height, width)).astype(np.float32)
    return module.InferInput(image_input["name"], list(pixels.shape), "FP32").set_data_from_numpy(pixels)


def classes_of(result: Any, count: int) -> list[list[tuple[float, int, str]]]:
    """Score, index and label out of the texts `score:index:label`."""
    texts = result.as_numpy("output")
    assert len(texts) == count
    parts = [[text.decode().split(":") for text in row] for row in texts]
    return [[(float(score), int(index), label) for score, index, label in row] for row in parts]


@pytest.mark.parametrize("way", ["http", "grpc", "stream"])
def test_the_best_classes_are_printed(service: tuple[str, str], way: str) -> None:
    module: Any = triton_http if way == "http" else triton_grpc
    with module.InferenceServerClient(service[way != "http"]) as client:
        inputs = [tensor_of(client, module, count=2)]
        outputs = [module.InferRequestedOutput("output", class_count=3)]
        if way == "stream":
            answers: queue.Queue[Any] = queue.Queue()
            client.start_stream(lambda result, error: answers.put(error or result))
            client.async_stream_infer(MODEL, inputs, outputs=outputs, request_id="1", model_version="")
            result = answers.get(timeout=30)
            client.stop_stream()
        else:
            result = client.infer(MODEL, inputs, outputs=outputs, request_id="1", model_version="")
    labels = requests.get(f"http://{service[0]}/model", timeout=10).json()["labels"]
    for classes in classes_of(result, 2):
        scores = [score for score, _, _ in classes]
        assert len(classes) == 3
        assert scores == sorted(scores, reverse=True)
        assert [label for _, _, label in classes] == [labels[index] for _, index, _ in classes]
