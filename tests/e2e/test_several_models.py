"""Several models in one service: names, paths, starts, failures."""

import base64
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import requests
import tritonclient.grpc as triton

from smallplates.client import Client, ServingClientError
from smallplates.client.tcp import TcpClient
from smallplates.engine import topology
from smallplates.settings import Settings
from tests import exports, graphs, pictures, servers
from tests.conftest import started
from tests.e2e.conftest import obedient, write_model
from tests.e2e.services import WORKER, fake_service, predict, programs
from tests.fake.backend import Failure, command
from tests.servers import metric, value, wait_for

NAMES = ("first", "second", "third")


def folders(parent: Path) -> str:
    """Three models whose classes begin with their names, as SERVING_MODELS names them."""
    for name in NAMES:
        write_model(folder := parent / name, "1", prefix=f"{name}-")
        described = json.loads((folder / "model.json").read_text())
        aliases = {f"{name}_photos": "request", f"{name}_numbers": "tensor"}
        (folder / "model.json").write_text(json.dumps(described | {"name": name, "aliases": aliases}))
    return ",".join(str(parent / name) for name in NAMES)


@pytest.fixture(scope="module", params=["1", "2"], ids=["one web process", "two web processes"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, psutil.Process]]:
    """A service of three models that are all ready."""
    folder = tmp_path_factory.mktemp("several")
    settings = obedient(folder, folder) | {"SERVING_MODELS": folders(folder)}
    settings |= {"SERVING_INSTANCES": "auto", "SERVING_WEB_PROCESSES": request.param}
    for name in ("fourth", "fifth"):
        write_model(folder / "store" / name, "1", prefix=f"{name}-")
    (folder / "store/empty").mkdir()
    write_model(folder / "outside", "1")
    settings |= {"SERVING_MODEL_STORE": str(folder / "store"), "SERVING_ADMIN_KEY": "chief"}
    with fake_service(settings) as (url, server):
        wait_for(lambda: {row["state"] for row in about(url)["models"]} == {"ready"})
        yield url, server


def workers_of_default() -> int:
    """An instance a core."""
    return topology.workers_per_device(Settings(device="cpu"))


KEY = {"Authorization": "Bearer chief"}


def change(url: str, name: str, what: str) -> requests.Response:
    """Loads or unloads a model."""
    path = f"{url}/v2/repository/models/{name}/{what}"
    return requests.post(path, headers=KEY, timeout=60)


def states(url: str) -> dict[str, tuple[str, str]]:
    """What the repository's index says of the names that models have of their own."""
    index = requests.post(f"{url}/v2/repository/index", headers=KEY, timeout=10).json()
    return {row["name"]: (row["state"], row["reason"]) for row in index}


def about(url: str, path: str = "/model") -> dict[str, Any]:
    """What a path answers."""
    answer: dict[str, Any] = requests.get(url + path, timeout=10).json()
    return answer


def ask(url: str, path: str, index: int = 5) -> requests.Response:
    """Asks on this path."""
    return requests.post(url + path, data=command(class_index=index), timeout=30)


def test_each_is_asked_by_its_name(service: tuple[str, psutil.Process]) -> None:
    url, _ = service
    assert ask(url, "/predict").json()["prediction"] == "first-5"
    for name in NAMES:
        assert ask(url, f"/predict/{name}").json()["prediction"] == f"{name}-5"
        assert next(iter(ask(url, f"/predictions/{name}").json())) == f"{name}-5"
        assert about(url, f"/model/{name}")["name"] == name
        for known in (name, f"{name}_photos", f"{name}_numbers"):
            assert about(url, f"/v2/models/{known}/ready") == {"name": known, "ready": True}
            assert about(url, f"/v1/models/{known}")["model_version_status"][0]["state"] == "AVAILABLE"
    assert [row["name"] for row in about(url)["models"]] == list(NAMES)
    assert about(url, "/health/ready")["models"] == dict.fromkeys(NAMES, "ready")
    unknown = ask(url, "/predict/fourth")
    assert unknown.status_code == 404
    assert "the models are first, second, third" in unknown.json()["detail"]
    index = requests.post(f"{url}/v2/repository/index", timeout=10).json()
    assert {row["name"] for row in index} == {
        form for name in NAMES for form in (name, f"{name}_photos", f"{name}_numbers")
    }
    assert {row["reason"] for row in index} == {""}
    assert {"fourth", "fifth", "empty"} <= set(states(url))  # only with a key


def test_each_is_counted_apart(service: tuple[str, psutil.Process]) -> None:
    url, _ = service
    for name, count in zip(NAMES, (1, 2, 3), strict=True):
        before = about(url, f"/v2/models/{name}/stats")["model_stats"][0]["inference_count"]
        for _ in range(count):
            assert ask(url, f"/predict/{name}").status_code == 200
        after = about(url, f"/v2/models/{name}/stats")["model_stats"][0]["inference_count"]
        assert after - before == count
    text = requests.get(f"{url}/metrics", timeout=10).text
    for name in NAMES:
        assert f'serving_ready_workers{{model="{name}"}}' in text
        assert f'serving_batch_size_count{{model="{name}"}}' in text
    assert value(text, "serving_ready_workers") == workers_of_default() + 2


def test_models_are_loaded_and_unloaded_while_others_answer(
    service: tuple[str, psutil.Process], senders: ThreadPoolExecutor
) -> None:
    url, server = service
    stop = threading.Event()

    def keep_asking(name: str) -> set[int]:
        statuses = set()
        while not stop.is_set():
            statuses.add(ask(url, f"/predict/{name}").status_code)
        return statuses

    others = [senders.submit(keep_asking, name) for name in ("first", "second")]
    sometimes = senders.submit(keep_asking, "third")
    before = len(programs(server, WORKER))
    try:
        for _ in range(2):
            assert change(url, "third", "unload").status_code == 200
            assert len(programs(server, WORKER)) == before - 1
            gone = ask(url, "/predict/third")
            assert (gone.status_code, gone.json()["code"]) == (503, "unavailable")
            assert "third is not in service: unloaded" in gone.json()["detail"]
            assert states(url)["third"] == ("UNAVAILABLE", "unloaded")
            assert about(url, "/health/ready")["models"]["third"] == "unavailable"
            metrics = requests.get(f"{url}/metrics", timeout=10).text
            assert 'serving_ready_workers{model="third"}' not in metrics
            assert change(url, "third_photos", "load").status_code == 200
            assert ask(url, "/predict/third").json()["prediction"] == "third-5"
            assert len(programs(server, WORKER)) == before
    finally:
        stop.set()
    assert {status for answers in others for status in answers.result()} == {200}
    assert sometimes.result() <= {200, 503}


def test_models_of_the_store_are_loaded_by_their_folders_names(
    service: tuple[str, psutil.Process],
) -> None:
    url, server = service
    before = len(programs(server, WORKER))
    assert states(url)["fourth"] == ("UNAVAILABLE", "not loaded")
    assert ask(url, "/predict/fourth").status_code == 404
    assert change(url, "fourth", "load").status_code == 200
    for _ in range(4):  # whichever web process answers
        assert ask(url, "/predict/fourth").json()["prediction"] == "fourth-5"
    assert states(url)["fourth"] == ("READY", "")
    assert [row["name"] for row in about(url)["models"]] == [*NAMES, "fourth"]
    collision = change(url, "fifth", "load")  # its aliases are the fourth's
    assert (collision.status_code, "food_classifier" in collision.text) == (400, True)
    assert change(url, "empty", "load").status_code == 400
    for name in (
        "outside",
        "..%2Foutside",
        "%2e%2e%2foutside",
        "..",
        "%2Fetc",
        "a" * 5000,
        "%00",
        "sixth",
    ):
        assert change(url, name, "load").status_code == 404
        assert change(url, name, "unload").status_code == 404
    unkeyed = requests.post(f"{url}/v2/repository/models/fourth/unload", timeout=10)
    assert unkeyed.status_code == 401
    assert change(url, "fourth", "unload").status_code == 200
    assert ask(url, "/predict/fourth").status_code == 404
    assert change(url, "fifth", "load").status_code == 200
    assert change(url, "fifth", "unload").status_code == 200
    assert len(programs(server, WORKER)) == before


@pytest.fixture(scope="module")
def tcp_port() -> int:
    """Where `different` takes frames over TCP."""
    return servers.free_port()


@pytest.fixture(scope="module")
def different(tmp_path_factory: pytest.TempPathFactory, tcp_port: int) -> Iterator[tuple[str, str]]:
    """Photos, sentences, questions and numbers in one service: base URL, and where gRPC is."""
    folder = tmp_path_factory.mktemp("different")
    names = ("input_ids", "attention_mask", "token_type_ids")
    exports.saved(folder / "export-1", exports.word_piece(), {}, names=names)
    exports.asked(folder / "reader", exports.word_piece(), {}, names=names)
    graphs.saved(graphs.two_by_two(), folder / "numbers", "1")
    models = (
        Settings().model_dir,
        f"sentiment={folder}/export-1",
        folder / "reader",
        folder / "numbers",
    )
    more = {"SERVING_MODELS": ",".join(map(str, models)), "SERVING_INSTANCES": "1"}
    more["SERVING_TCP_PORT"] = str(tcp_port)
    with started("fastapi_onnx", **more) as (url, grpc):
        wait_for(lambda: {row["state"] for row in about(url)["models"]} == {"ready"})
        yield url, grpc


def test_every_model_has_examples_in_swagger_that_are_answered(different: tuple[str, str]) -> None:
    url, _ = different
    paths = about(url, "/openapi.json")["paths"]
    asked = {path.removeprefix("/predict/") for path in paths if path.startswith("/predict/")}
    assert asked == {"food11", "sentiment", "reader"}
    for name in asked:
        body = paths[f"/predict/{name}"]["post"]["requestBody"]["content"]["application/json"]
        answer = requests.post(f"{url}/predict/{name}", json=body["example"], timeout=10)
        assert answer.status_code == 200, answer.text
    for name in ("food11", "sentiment", "reader", "numbers"):
        assert paths[f"/model/{name}"]
        assert about(url, f"/model/{name}")["name"] == name
    for template in ("/v2/models/{model}/infer", "/v1/models/{model}:predict", "/predictions/{model}"):
        call = paths[template]["post"]
        (model,) = (part for part in call["parameters"] if part["name"] == "model")
        bodies = call["requestBody"]["content"]["application/json"]["examples"]
        assert {"this model", "sentiment", "reader"} <= set(bodies) <= set(model["examples"])
        for key, example in bodies.items():
            path = template.replace("{model}", model["examples"][key]["value"])
            answer = requests.post(url + path, json=example["value"], timeout=10)
            assert answer.status_code == 200, answer.text


def test_tf_serving_and_kserve_know_each(different: tuple[str, str]) -> None:
    url, _ = different
    names = about(url, "/v1/models")["models"]
    assert {"food11", "food_classifier", "sentiment", "sentiment_tensor", "reader", "numbers"} <= set(
        names
    )
    for name in names:
        (status,) = about(url, f"/v1/models/{name}")["model_version_status"]
        assert (status["version"], status["state"]) == ("1", "AVAILABLE")
        described = about(url, f"/v1/models/{name}/metadata")
        assert described["model_spec"]["name"] == name
    bodies: dict[str, dict[str, list[Any]]] = {
        "food11": {"instances": [{"b64": base64.b64encode(pictures.jpeg()).decode()}]},
        "sentiment": {"instances": ["a warm soup", "an awful soup"]},
        "reader": {"instances": [{"QUESTION": "a", "CONTEXT": "soup"}]},
        "numbers": {"instances": [{"a": [1.5, 2], "b": [1, 3]}]},
    }
    for name, body in bodies.items():
        answer = requests.post(f"{url}/v1/models/{name}:predict", json=body, timeout=10)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["predictions"]) == len(body["instances"])
    assert answer.json()["predictions"] == [{"sum": [2.5, 5.0], "more": [True, False]}]
    unknown = requests.get(f"{url}/v1/models/nothing", timeout=10)
    assert (unknown.status_code, list(unknown.json())) == (404, ["error"])


def test_torchserve_knows_each(different: tuple[str, str]) -> None:
    url, _ = different
    listed = {row["modelName"]: row["modelUrl"] for row in about(url, "/models")["models"]}
    assert listed["sentiment"] == "export-1"
    assert listed["food11"] == listed["food_classifier"] == "food11"
    for name in listed:
        (described,) = requests.get(f"{url}/models/{name}", timeout=10).json()
        assert (described["modelName"], described["modelUrl"]) == (name, listed[name])
        assert {worker["status"] for worker in described["workers"]} == {"READY"}
    photo, text = pictures.jpeg(), {"text": "a warm soup"}
    assert len(requests.post(f"{url}/predictions/food11", data=photo, timeout=10).json()) == 5
    labels = requests.post(f"{url}/predictions/sentiment", json=text, timeout=10).json()
    assert set(labels) == set(about(url, "/model/sentiment")["labels"])
    question = {"question": "a", "context": "soup"}
    assert "answer" in requests.post(f"{url}/predictions/reader", json=question, timeout=10).json()
    refused = requests.post(f"{url}/predictions/numbers", json={"a": [1]}, timeout=10)
    assert (refused.status_code, refused.json()["type"]) == (400, "BadRequestException")
    unknown = requests.get(f"{url}/models/nothing", timeout=10)
    assert (unknown.status_code, unknown.json()["code"]) == (404, 404)


def test_tritons_client_asks_each(different: tuple[str, str]) -> None:
    _, target = different
    with triton.InferenceServerClient(target) as client:
        for name, column in (("sentiment", "LABEL"), ("reader", "ANSWER")):
            texts = (
                {"TEXT": "a warm soup"} if name == "sentiment" else {"QUESTION": "a", "CONTEXT": "soup"}
            )
            inputs = []
            for field, text in texts.items():
                inputs.append(triton.InferInput(field, [1], "BYTES"))
                inputs[-1].set_data_from_numpy(np.array([text.encode()], object))
            assert client.infer(name, inputs).as_numpy(column).shape == (1,)
            assert client.is_model_ready(name)
        statistics = client.get_inference_statistics(as_json=True)["model_stats"]
        assert {"sentiment", "reader", "numbers"} <= {row["name"] for row in statistics}


def test_our_client_asks_each(different: tuple[str, str], tmp_path: Path) -> None:
    url, _ = different
    (photo := tmp_path / "photo.jpg").write_bytes(pictures.jpeg())
    with Client(url) as client:
        assert client.predict(photo, model="food11").label == client.predict(photo).label
        (item,) = client.predict_many([photo], model="food11")
        assert item.prediction
        assert item.prediction.label == client.predict(photo).label
        label = client.classify_text("a warm soup", model="sentiment").label
        assert label in client.model("sentiment").labels
        (one,) = client.call({"text": ["a warm soup"]}, model="sentiment").body
        assert one["prediction"] == label
        assert client.answer("a", "soup", model="reader").answer in {"soup", ""}
        assert (client.model("numbers").name, client.model().name) == ("numbers", "food11")
        for name, code in (("numbers", "not_supported"), ("nothing", "not_found")):
            with pytest.raises(ServingClientError) as refused:
                client.call({"text": "a"}, model=name)
            assert refused.value.code == code


@pytest.mark.usefixtures("different")
def test_our_client_asks_each_over_tcp(tcp_port: int) -> None:
    with TcpClient("127.0.0.1", tcp_port) as client:
        photo, text, question = (
            pictures.jpeg(),
            b'{"text": "a warm soup"}',
            b'{"question": "a", "context": "soup"}',
        )
        asked = ((photo, None), (photo, "food11"), (text, "sentiment"), (question, "reader"))
        answers = [client.predict(body, model=name) for body, name in asked]
        assert [answer.status for answer in answers] == [200] * 4
        assert answers[0].content["prediction"] == answers[1].content["prediction"]
        assert "answer" in answers[3].content
        assert client.predict(text, model="nothing").status == 404


def test_the_command_asks_each(different: tuple[str, str], tcp_port: int) -> None:
    for address in (different[0], f"tcp://127.0.0.1:{tcp_port}"):
        for text, name, code in (("a warm soup", "sentiment", 0), ("a", "nothing", 1)):
            arguments = ["--url", address, "--text", text, "--model", name]
            process = subprocess.run(
                [sys.executable, "-m", "smallplates", "ask", *arguments],
                cwd=servers.ROOT,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert process.returncode == code, process.stderr
            assert f"{text}: " in process.stdout + process.stderr


def test_the_workers_of_one_die_and_the_others_answer(
    service: tuple[str, psutil.Process], senders: ThreadPoolExecutor
) -> None:
    url, server = service
    for _ in range(2):
        ask_all = [senders.submit(ask, url, f"/predict/{NAMES[i % 3]}", i) for i in range(60)]
        for worker in programs(server, WORKER):
            if "/second" in " ".join(worker.cmdline()):
                worker.send_signal(signal.SIGKILL)
        answers = [answer.result() for answer in ask_all]
        assert [answer.status_code for answer in answers] == [200] * 60
        assert [answer.json()["prediction"] for answer in answers] == [
            f"{NAMES[i % 3]}-{i}" for i in range(60)
        ]
        wait_for(lambda: about(url, "/health/ready")["models"] == dict.fromkeys(NAMES, "ready"))
    crash = requests.post(f"{url}/predict/third", data=command(failure=Failure.EXIT), timeout=30)
    assert crash.json()["code"] == "worker_crashed"
    assert predict(url, command(class_index=1)).json()["prediction"] == "first-1"


def test_the_default_serves_while_another_loads_or_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = obedient(tmp_path, tmp_path) | {"SERVING_MODELS": folders(tmp_path)}
    settings |= {"SERVING_INSTANCES": "1", "FAKE_BROKEN_VERSION": "7"}
    described = json.loads((tmp_path / "second/model.json").read_text())
    (tmp_path / "second/model.json").write_text(json.dumps(described | {"version": "7"}))
    (tmp_path / "broken").touch()
    with fake_service(settings) as (url, server):
        assert ask(url, "/predict").status_code == 200
        wait_for(lambda: about(url)["models"][2]["state"] == "ready")
        state = about(url)["models"][1]
        assert (state["name"], state["state"]) == ("second", "unavailable")
        assert "commanded not to load" in state["reason"]
        for path in ("/predict/second", "/predictions/second_photos"):
            refused = ask(url, path)
            assert refused.status_code == 503
            assert "commanded not to load" in refused.text
        for path in ("/v2/models/second/ready", "/v1/models/second", "/models/second_photos"):
            refused = requests.get(url + path, timeout=10)
            assert refused.status_code == 503
            assert "commanded not to load" in refused.text
        known = about(url, "/v1/models")["models"]
        assert known == [row["modelName"] for row in about(url, "/models")["models"]]
        assert {"second", "second_photos", "second_numbers"} < set(known)
        state, reason = states(url)["second"]
        assert (state, "commanded" in reason) == ("UNAVAILABLE", True)
        assert ask(url, "/predict/third").json()["prediction"] == "third-5"
        assert metric(url, 'serving_ready_workers{model="second"}') == 0  # which an alert asks for
        assert metric(url, 'serving_ready_workers{model="third"}') == 1
        for worker in programs(server, WORKER):
            if "/third" in " ".join(worker.cmdline()):
                worker.send_signal(signal.SIGKILL)
        wait_for(lambda: metric(url, 'serving_worker_restarts_total{model="third"}') == 1)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    told = {(line["event"], line.get("model")) for line in lines}
    assert {("a model cannot be served", "second"), ("an inference worker died", "third")} <= told
