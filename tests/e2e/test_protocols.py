"""What all protocols share: overload, keys, crashes, versions, several web processes, switching off."""

import base64
import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import numpy as np
import pytest
import requests
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from smallplates.web.http.request_context import HEALTH_PATH, HIDDEN
from tests import servers
from tests.e2e.services import WORKER, fake_service, predict, programs
from tests.fake.backend import Failure, command, command_tensor
from tests.servers import metric, wait_for

pytestmark = pytest.mark.slow

RAW = {"Inference-Header-Content-Length": "0"}


def native(url: str, picture: bytes, **headers: str) -> requests.Response:
    return requests.post(f"{url}/predict", data=picture, headers=headers, timeout=60)


def v2(url: str, picture: bytes, **headers: str) -> requests.Response:
    path = f"{url}/v2/models/food_classifier/infer"
    return requests.post(path, data=picture, headers={**RAW, **headers}, timeout=60)


def tfserving(url: str, picture: bytes, **headers: str) -> requests.Response:
    body = {"instances": [{"b64": base64.b64encode(picture).decode()}]}
    path = f"{url}/v1/models/food_classifier:predict"
    return requests.post(path, json=body, headers=headers, timeout=60)


def torchserve(url: str, picture: bytes, **headers: str) -> requests.Response:
    path = f"{url}/predictions/food_classifier"
    return requests.post(path, data=picture, headers=headers, timeout=60)


KEYS = {
    "native": {"detail", "code", "request_id"},
    "v2": {"error"},
    "tfserving": {"error"},
    "torchserve": {"code", "type", "message"},
}
ASKS: dict[str, Any] = {"native": native, "v2": v2, "tfserving": tfserving, "torchserve": torchserve}


def check_error(response: requests.Response, name: str, status: int) -> None:
    """The protocol's own shape, and nothing of what went wrong inside."""
    assert response.status_code == status, response.text
    assert set(response.json()) == KEYS[name]
    assert "secret" not in response.text


def test_overload_and_failures_in_every_shape(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor
) -> None:
    settings = {"instances": "1", "queue_size": "2", "max_batch_size": "1"}
    with fake_service(fake_settings, **settings) as (url, _):
        held = [senders.submit(torchserve, url, command(held=True, class_index=9)) for _ in range(2)]
        wait_for(lambda: metric(url, "serving_free_slots") == 0)
        for name, ask in ASKS.items():
            refused = ask(url, command())
            check_error(refused, name, 503)
            assert int(refused.headers["Retry-After"]) >= 1
        (tmp_path / "gate").touch()
        assert [next(iter(future.result().json())) for future in held] == ["9", "9"]
        for name, ask in ASKS.items():
            for failure in (Failure.RAISE, Failure.NOT_FINITE):
                check_error(ask(url, command(failure=failure)), name, 500)
            assert ask(url, command(class_index=3)).status_code == 200
        check_error(native(url, command(failure=Failure.EXIT)), "native", 500)
        wait_for(lambda: requests.get(f"{url}/ping", timeout=60).status_code == 200)
        assert native(url, command(class_index=3)).status_code == 200


PATHS = {
    "native": "/predict",
    "v2": "/v2/models/food_classifier/infer",
    "tfserving": "/v1/models/food_classifier:predict",
    "torchserve": "/predictions/food_classifier",
}


def test_keys_and_slow_senders(fake_settings: dict[str, str]) -> None:
    with fake_service(fake_settings, instances="1", api_key="guest", body_timeout_ms="300") as (url, _):
        parts = urlsplit(url)
        for name, ask in ASKS.items():
            missing = ask(url, command())
            check_error(missing, name, 401)
            assert missing.headers["WWW-Authenticate"] == "Bearer"
            assert ask(url, command(), Authorization="Bearer guest").status_code == 200
            with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as slow:
                head = (
                    f"POST {PATHS[name]} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer guest\r\n"
                )
                slow.sendall(f"{head}Content-Length: 1000\r\n\r\nx".encode())
                answer = slow.makefile("rb").read().decode()  # to the end: the connection is closed
            assert answer.startswith("HTTP/1.1 408")
            assert set(json.loads(answer.partition("\r\n\r\n")[2])) == KEYS[name]


def test_grpc_keeps_keys_limits_secrets_and_statistics_of_several_web_processes(
    fake_settings: dict[str, str], senders: ThreadPoolExecutor
) -> None:
    port = servers.free_port()
    settings = {"web_processes": "2", "instances": "1", "api_key": "guest", "grpc_port": str(port)}
    with fake_service(fake_settings, **settings) as (url, _):
        tensor = triton_grpc.InferInput("input", [2, 3, 8, 8], "FP32")
        tensor.set_data_from_numpy(np.stack([command_tensor(class_index=i) for i in (5, 6)]))
        headers = {"authorization": "Bearer guest"}

        def ask(_: int) -> list[int]:
            with triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
                result = client.infer("food_classifier_onnx", [tensor], headers=headers)
                return [int(index) for index in result.as_numpy("output").argmax(axis=1)]

        assert list(senders.map(ask, range(12))) == [[5, 6]] * 12
        with (
            triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as client,
            pytest.raises(InferenceServerException, match="UNAUTHENTICATED"),
        ):
            client.infer("food_classifier_onnx", [tensor])
        for _ in range(4):  # whichever web process answers
            stats = requests.get(f"{url}/v2/models/food_classifier_onnx/stats", timeout=60).json()
            (model,) = stats["model_stats"]
            assert model["inference_count"] == 24
            assert model["inference_stats"]["success"]["count"] == 12
            sizes = [b["batch_size"] * b["compute_infer"]["count"] for b in model["batch_stats"]]
            assert sum(sizes) == 24
        broken = triton_grpc.InferInput("INPUT_IMAGE", [1], "BYTES")
        broken.set_data_from_numpy(np.array([command(failure=Failure.RAISE)], object))
        with (
            triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as client,
            pytest.raises(InferenceServerException) as caught,
        ):
            client.infer("food_classifier", [broken], headers=headers)
        assert (caught.value.status(), caught.value.message()) == ("StatusCode.INTERNAL", HIDDEN)
        path = "/inference.GRPCInferenceService/ModelInfer"
        labels = f'code="internal_error",model="fake",path="{path}",status="500"'
        wait_for(lambda: metric(url, re.escape(f"serving_requests_total{{{labels}}}")) == 1)


def test_versions_are_loaded_by_tritons_clients(versions: dict[str, str]) -> None:
    port = servers.free_port()
    more = {"admin_key": "chief", "grpc_port": str(port)}
    with fake_service(versions, instances="1", **more) as (url, _):
        client: Any = triton.InferenceServerClient(url.removeprefix("http://"))
        chief = {"authorization": "Bearer chief"}
        with pytest.raises(InferenceServerException, match="admin key"):
            client.load_model("food_classifier")
        policy = json.dumps({"version_policy": {"specific": {"versions": [2]}}})
        client.load_model("food_classifier", headers=chief, config=policy)
        index = {(m["version"], m["state"]) for m in client.get_model_repository_index()}
        assert index == {("2", "READY"), ("3", "UNAVAILABLE")}
        assert client.is_model_ready("fake", "2")
        assert b"\x05\0\0\0two-4" in v2(url, command(class_index=4)).content
        client.load_model("food_classifier", headers=chief)
        assert client.is_model_ready("food_classifier", "1")
        assert ("2", "UNAVAILABLE") in {
            (m["version"], m["state"]) for m in client.get_model_repository_index()
        }
        client.unload_model("food_classifier", headers=chief)
        client.unload_model("food_classifier", headers=chief)
        assert not client.is_model_ready("fake")
        assert not client.is_server_ready()
        unloaded = predict(url, command(class_index=4))
        assert (unloaded.status_code, "unloaded" in unloaded.json()["detail"]) == (503, True)
        for headers, reason in ((chief, "unloaded"), ({}, "")):
            index = client.get_model_repository_index(headers=headers)
            assert {(m["state"], m["reason"]) for m in index} == {("UNAVAILABLE", reason)}
        client.load_model("food_classifier", headers=chief)
        assert predict(url, command(class_index=4)).json()["prediction"] == "one-4"
        client.close()
        client = triton_grpc.InferenceServerClient(f"127.0.0.1:{port}")
        with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
            client.load_model("food_classifier")
        client.load_model("food_classifier", headers=chief, config=policy)
        assert client.is_model_ready("fake", "2")
        assert not client.is_model_ready("fake", "1")
        client.load_model("food_classifier", headers=chief)
        assert client.is_model_ready("fake", "1")
        client.unload_model("food_classifier", headers=chief)
        assert not client.is_model_ready("fake")
        assert {m.state for m in client.get_model_repository_index().models} == {"UNAVAILABLE"}
        client.load_model("food_classifier", headers=chief)
        assert client.is_model_ready("fake", "1")
        files = {"file:1/model.onnx": b"model"}
        for options, name in (
            ({"config": "{"}, "config"),
            ({"config": "{}", "files": files}, "file:1/model.onnx"),
            ({"config": '{"max_batch_size": 8}'}, "max_batch_size"),
        ):
            with pytest.raises(InferenceServerException, match=f"INVALID_ARGUMENT.*{name}"):
                client.load_model("food_classifier", headers=chief, **options)
        client.close()


@pytest.mark.parametrize("web_processes", ["1", "2"])
def test_a_client_that_does_not_wait_for_its_version_leaves_nothing_behind(
    versions: dict[str, str], tmp_path: Path, web_processes: str
) -> None:
    port = servers.free_port()
    more = {"admin_key": "chief", "grpc_port": str(port), "web_processes": web_processes}
    with (
        fake_service(versions, **more) as (url, server),
        triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as client,
    ):
        chief = {"authorization": "Bearer chief"}

        def load(version: int, timeout_s: float | None) -> None:
            policy = json.dumps({"version_policy": {"specific": {"versions": [version]}}})
            client.load_model("fake", headers=chief, config=policy, client_timeout=timeout_s)

        (tmp_path / "loading").touch()
        with pytest.raises(InferenceServerException, match="Deadline"):
            load(2, 0.5)
        (tmp_path / "loading").unlink()
        load(3, None)
        assert client.is_model_ready("fake", "3")
        assert len(programs(server, WORKER)) == 2
        assert requests.get(f"{url}/model", timeout=60).json()["version"] == "3"


def test_protocols_can_be_switched_off(fake_settings: dict[str, str]) -> None:
    port = servers.free_port()
    settings = {"instances": "1", "protocols": "torchserve", "grpc_port": str(port)}
    with fake_service(fake_settings, **settings) as (url, _):
        assert torchserve(url, command()).status_code == 200
        for ask in (v2, tfserving):
            refused = ask(url, command())
            assert refused.status_code == 404
            assert refused.json()["code"] == "not_found"
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:

            def answers(path: str, message: bytes = b"") -> bool:
                """Whether there is such a method, which takes this message."""
                try:
                    return bool(channel.unary_unary(path)(message, timeout=60))
                except grpc.RpcError as error:
                    expected = grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND
                    assert error.code() in expected  # noqa: PT017 what is asked
                    return False

            names = {
                "org.pytorch.serve.grpc.inference.InferenceAPIsService": "Ping",
                "inference.GRPCInferenceService": "ServerLive",
                "tensorflow.serving.ModelService": "GetModelStatus",
            }
            assert [answers(f"/{name}/{names[name]}") for name in names] == [True, False, False]
            checked = (b"\x0a" + bytes([len(name)]) + name.encode() for name in names)
            assert [answers(HEALTH_PATH, each) for each in checked] == [True, False, False]


def test_ten_threads_of_a_tensorflow_serving_client_become_one_batch(
    fake_settings: dict[str, str],
) -> None:
    """docs/tutorial-ratios.md has the settings and the client."""
    ten = {"instances": "1", "max_batch_size": "10", "preferred_batch_sizes": "10"}
    with (
        fake_service(fake_settings, **ten, max_queue_delay_us="10000000") as (url, _),
        ThreadPoolExecutor(10) as threads,
    ):
        pictures = [command(class_index=index) for index in range(10)]
        answers = list(threads.map(lambda picture: tfserving(url, picture).json(), pictures))
        labels = [answer["predictions"][0]["FOOD_LABEL"] for answer in answers]
        assert len(set(labels)) == 10
        assert metric(url, "serving_batch_size_count") == 1
        assert metric(url, "serving_batch_size_sum") == 10
