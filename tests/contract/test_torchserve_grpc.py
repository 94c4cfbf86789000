"""TorchServe's gRPC API on both backends; the golden files have the messages of generated stubs."""

import json
from typing import Any

import grpc
import pytest
import requests

from smallplates.web.grpc.generated import torch_serve_pb2 as pb
from tests import pictures

PHOTO = pictures.jpeg()
MODEL = "food_classifier"
INFERENCE = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
MANAGEMENT = "org.pytorch.serve.grpc.management.ManagementAPIsService"


def call(target: str, method: str, request: bytes) -> list[bytes]:
    with grpc.insecure_channel(target) as channel:
        kind = channel.unary_stream if "Stream" in method else channel.unary_unary
        answer = kind(f"/{method}")(request, timeout=60)
        return [*answer] if "Stream" in method else [answer]


def predict(target: str, input: Any, method: str = "Predictions", **more: str) -> Any:  # noqa: A002
    request = pb.PredictionsRequest(**{"model_name": MODEL, **more}, input=input).SerializeToString()
    (answer,) = call(target, f"{INFERENCE}/{method}", request)
    return json.loads(pb.PredictionResponse.FromString(answer).prediction)


@pytest.mark.parametrize("method", ["Predictions", "StreamPredictions"])
@pytest.mark.parametrize("name", ["data", "body", "image"])
def test_photos(backend_url: str, grpc_target: str, method: str, name: str) -> None:
    wanted = requests.post(f"{backend_url}/predictions/{MODEL}", data=PHOTO, timeout=60).json()
    for version in ("", "1", "1.0"):
        answer = predict(grpc_target, {name: PHOTO}, method, model_version=version)
        assert [*answer] == [*wanted]
        assert [*answer.values()] == pytest.approx([*wanted.values()], abs=1e-4)


def test_a_ping(grpc_target: str) -> None:
    (answer,) = call(grpc_target, f"{INFERENCE}/Ping", b"")
    assert json.loads(pb.TorchServeHealthResponse.FromString(answer).health) == {"status": "Healthy"}


HOSTILE: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("INVALID_ARGUMENT", {}, {}),
    ("INVALID_ARGUMENT", {"data": b""}, {}),
    ("INVALID_ARGUMENT", {"data": b"no photo"}, {}),
    ("INVALID_ARGUMENT", {"data": b'{"image": '}, {}),
    ("INVALID_ARGUMENT", {"image": b""}, {}),
    ("INVALID_ARGUMENT", {"other": PHOTO}, {}),
    ("INVALID_ARGUMENT", {"data": PHOTO, "image": PHOTO}, {}),
    ("INVALID_ARGUMENT", {str(number): b"" for number in range(10_000)}, {}),
    ("INVALID_ARGUMENT", {"data": PHOTO}, {"model_name": "food_classifier_onnx"}),
    ("NOT_FOUND", {"data": PHOTO}, {"model_name": "nothing"}),
    ("NOT_FOUND", {"data": PHOTO}, {"model_version": "2.0"}),
]


@pytest.mark.parametrize("method", ["Predictions", "StreamPredictions"])
@pytest.mark.parametrize(("code", "input_", "more"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_messages(grpc_target: str, method: str, code: str, input_: Any, more: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        predict(grpc_target, input_, method, **more)
    assert caught.value.code().name == code, caught.value.details()


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (f"{INFERENCE}/Predictions", "INVALID_ARGUMENT"),
        (f"{INFERENCE}/StreamPredictions", "INVALID_ARGUMENT"),
        (f"{MANAGEMENT}/RegisterModel", "UNIMPLEMENTED"),
    ],
)
def test_other_calls(grpc_target: str, method: str, code: str) -> None:
    request = b"\xff" * 50 if code == "INVALID_ARGUMENT" else b"\x0a\4food"
    with pytest.raises(grpc.RpcError) as caught:
        call(grpc_target, method, request)
    assert caught.value.code().name == code
