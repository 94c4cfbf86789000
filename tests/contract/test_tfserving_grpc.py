"""TensorFlow Serving's gRPC API on both backends; the golden files have its own client's messages."""

from typing import Any

import grpc
import numpy as np
import pytest
import requests

from smallplates.web.grpc.generated import tf_serving_pb2 as pb
from tests import pictures

PHOTO = pictures.jpeg()
PHOTOS, TENSORS = "food_classifier", "food_classifier_onnx"
PREDICTION, MODEL = "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"
ROW = [3, 224, 224]


def call(target: str, method: str, request: Any, response: Any) -> Any:
    with grpc.insecure_channel(target) as channel:
        stub = channel.unary_unary(f"/{method}", response_deserializer=response.FromString)
        data = request if isinstance(request, bytes) else request.SerializeToString()
        return stub(data, timeout=60)


def tensor(dtype: str, shape: list[int] | None, **values: Any) -> Any:
    dims = {} if shape is None else {"tensor_shape": {"dim": [{"size": size} for size in shape]}}
    return {"dtype": dtype, **dims, **values}


def photos(count: int | None = 1) -> Any:
    files = [PHOTO] * (1 if count is None else count)
    return tensor("DT_STRING", None if count is None else [count], string_val=files)


def predict(target: str, inputs: Any, model: str = PHOTOS, spec: Any = None, **more: Any) -> Any:
    spec = {"name": model, "signature_name": "serving_default", **(spec or {})}
    request = pb.PredictRequest(model_spec=spec, inputs=inputs, **more)
    return call(target, f"{PREDICTION}/Predict", request, pb.PredictResponse)


def check_refused(target: str, method: str, request: Any, code: str) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call(target, method, request, pb.PredictResponse)
    assert caught.value.code().name == code, caught.value.details()
    assert ".py" not in caught.value.details()
    return str(caught.value.details())


@pytest.mark.parametrize("count", [None, 1, 2])
def test_photos(backend_url: str, grpc_target: str, count: int | None) -> None:
    native = requests.post(f"{backend_url}/predict", data=PHOTO, timeout=60).json()
    answer = predict(grpc_target, {"INPUT_IMAGE": photos(count)})
    labels, probabilities = answer.outputs["FOOD_LABEL"], answer.outputs["PROBABILITY"]
    for each in (labels, probabilities):
        assert [dim.size for dim in each.tensor_shape.dim] == [count or 1]
    assert (labels.dtype, probabilities.dtype) == (pb.DT_STRING, pb.DT_FLOAT)
    assert [*labels.string_val] == [native["prediction"].encode()] * (count or 1)
    assert [*probabilities.float_val] == pytest.approx([native["probability"]] * (count or 1), abs=1e-5)
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == (PHOTOS, 1, "serving_default")


def test_tensors_in_every_form(backend_url: str, grpc_target: str) -> None:
    ones = np.ones((2, *ROW), np.float32)
    body = {"inputs": {"input": ones.tolist()}}
    url = f"{backend_url}/v1/models/{TENSORS}:predict"
    wanted = requests.post(url, json=body, timeout=60).json()["outputs"]
    for values in (
        {"tensor_content": ones.tobytes()},
        {"float_val": ones.ravel()},
        {"float_val": [1.0]},
        {"float_val": [1.0] * 1000},
    ):
        sent = tensor("DT_FLOAT", [2, *ROW], **values)
        (output,) = predict(grpc_target, {"input": sent}, TENSORS).outputs.values()
        assert [dim.size for dim in output.tensor_shape.dim] == [2, 11]
        np.testing.assert_allclose(np.reshape(output.float_val, (2, 11)), wanted, atol=1e-3)


def test_an_output_filter_and_versions(grpc_target: str) -> None:
    inputs = {"INPUT_IMAGE": photos()}
    for spec in ({}, {"version": {"value": 1}}, {"version_label": "1"}, {"signature_name": ""}):
        answer = predict(grpc_target, inputs, spec=spec, output_filter=["PROBABILITY"])
        assert [*answer.outputs] == ["PROBABILITY"]
    for spec in ({"name": "nothing"}, {"version": {"value": 2}}, {"version_label": "stable"}):
        with pytest.raises(grpc.RpcError) as caught:
            predict(grpc_target, inputs, spec=spec)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(("model", "name"), [(PHOTOS, "INPUT_IMAGE"), (TENSORS, "input")])
def test_metadata_and_status(grpc_target: str, model: str, name: str) -> None:
    spec = {"name": model, "version": {"value": 1}}
    request = pb.GetModelMetadataRequest(model_spec=spec, metadata_field=["signature_def"])
    method = f"{PREDICTION}/GetModelMetadata"
    answer = call(grpc_target, method, request, pb.GetModelMetadataResponse)
    packed = answer.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    signature = pb.SignatureDefMap.FromString(packed.value).signature_def["serving_default"]
    sizes = [dim.size for dim in signature.inputs[name].tensor_shape.dim]
    assert sizes == ([-1] if model == PHOTOS else [-1, *ROW])
    assert signature.inputs[name].dtype == (pb.DT_STRING if model == PHOTOS else pb.DT_FLOAT)
    assert signature.method_name == "tensorflow/serving/predict"
    check_refused(grpc_target, method, pb.GetModelMetadataRequest(model_spec=spec), "INVALID_ARGUMENT")
    request = pb.GetModelStatusRequest(model_spec=spec)
    answer = call(grpc_target, f"{MODEL}/GetModelStatus", request, pb.GetModelStatusResponse)
    (status,) = answer.model_version_status
    assert (status.version, status.state) == (1, pb.ModelVersionStatus.AVAILABLE)
    spec["name"] = "nothing"
    for method in (f"{MODEL}/GetModelStatus", f"{PREDICTION}/GetModelMetadata"):
        request = pb.GetModelMetadataRequest(model_spec=spec, metadata_field=["signature_def"])
        check_refused(grpc_target, method, request, "NOT_FOUND")


@pytest.mark.parametrize(
    "method",
    [
        *(f"{PREDICTION}/{name}" for name in ("Classify", "Regress", "MultiInference")),
        f"{MODEL}/HandleReloadConfigRequest",
    ],
)
def test_what_is_not_supported_says_so(grpc_target: str, method: str) -> None:
    assert "not supported" in check_refused(grpc_target, method, b"", "UNIMPLEMENTED")


HUGE = 2**62
HOSTILE: list[tuple[str, Any]] = [
    (PHOTOS, {}),
    (PHOTOS, {"x": photos()}),
    (PHOTOS, {"INPUT_IMAGE": {}}),
    (PHOTOS, {"INPUT_IMAGE": tensor("DT_STRING", [1])}),
    (PHOTOS, {"INPUT_IMAGE": tensor("DT_STRING", [1], string_val=[b""])}),
    (PHOTOS, {"INPUT_IMAGE": tensor("DT_STRING", [1], string_val=[b"x"])}),
    (PHOTOS, {"INPUT_IMAGE": tensor("DT_STRING", [1], string_val=[PHOTO] * 2)}),
    (PHOTOS, {"INPUT_IMAGE": tensor("DT_STRING", [1], tensor_content=PHOTO)}),
    (PHOTOS, {"INPUT_IMAGE": tensor("DT_STRING", [HUGE], string_val=[PHOTO])}),
    (PHOTOS, {"INPUT_IMAGE": tensor("DT_STRING", [100_000], string_val=[b"x"])}),
    (PHOTOS, {"INPUT_IMAGE": tensor("DT_STRING", [0])}),
    (PHOTOS, {"INPUT_IMAGE": tensor("DT_FLOAT", [1], float_val=[1.0])}),
    (PHOTOS, {"INPUT_IMAGE": {"dtype": 77, "string_val": [PHOTO]}}),
    (PHOTOS, {"INPUT_IMAGE": {"dtype": -1, "string_val": [PHOTO]}}),
    (TENSORS, {"input": tensor("DT_FLOAT", [1, *ROW])}),
    (TENSORS, {"input": tensor("DT_FLOAT", [-1, *ROW], float_val=[1.0])}),
    (TENSORS, {"input": tensor("DT_FLOAT", [-1, -3, *ROW[1:]], float_val=[1.0])}),
    (TENSORS, {"input": tensor("DT_FLOAT", [HUGE, *ROW], float_val=[1.0])}),
    (TENSORS, {"input": tensor("DT_FLOAT", [HUGE] * 8, float_val=[1.0])}),
    (TENSORS, {"input": tensor("DT_FLOAT", [1] * 10_000, float_val=[1.0])}),
    (TENSORS, {"input": tensor("DT_FLOAT", [10_000, *ROW], float_val=[1.0])}),
    (TENSORS, {"input": tensor("DT_FLOAT", [0, *ROW])}),
    (TENSORS, {"input": tensor("DT_FLOAT", [], float_val=[1.0])}),
    (TENSORS, {"input": tensor("DT_FLOAT", [1, *ROW], double_val=[1.0])}),
    (TENSORS, {"input": tensor("DT_DOUBLE", [1, *ROW], double_val=[1.0])}),
    (TENSORS, {"input": tensor("DT_INT32", [1, *ROW], int_val=[1])}),
    (TENSORS, {"input": tensor("DT_FLOAT", [1, *ROW], float_val=[1.0] * 150_529)}),
    (TENSORS, {"input": tensor("DT_FLOAT", [1, *ROW], tensor_content=bytes(602_111))}),
    (TENSORS, {"input": {**tensor("DT_FLOAT", [1, *ROW]), "tensor_shape": {"unknown_rank": True}}}),
    (TENSORS, {str(number): tensor("DT_FLOAT", []) for number in range(2000)}),
]


@pytest.mark.parametrize(("model", "inputs"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_messages(grpc_target: str, model: str, inputs: Any) -> None:
    request = pb.PredictRequest(model_spec={"name": model}, inputs=inputs)
    check_refused(grpc_target, f"{PREDICTION}/Predict", request, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    "request_",
    [
        b"\xff" * 50,
        b"\x12\0" * 40_000,
        pb.PredictRequest(
            model_spec={"name": PHOTOS, "signature_name": "other"}, inputs={"INPUT_IMAGE": photos()}
        ),
        pb.PredictRequest(
            model_spec={"name": PHOTOS}, inputs={"INPUT_IMAGE": photos()}, output_filter=["x"]
        ),
        pb.PredictRequest(
            model_spec={"name": TENSORS},
            inputs={"input": tensor("DT_FLOAT", [1, *ROW], int64_val=[1] * 10_000_000)},
        ),
    ],
    ids=range(5),
)
def test_other_hostile_messages(grpc_target: str, request_: Any) -> None:
    check_refused(grpc_target, f"{PREDICTION}/Predict", request_, "INVALID_ARGUMENT")
