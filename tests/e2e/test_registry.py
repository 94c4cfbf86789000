"""What is in service changes in every web process, or in none."""

import json
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from tests import exports, graphs, servers
from tests.e2e.services import WEB, WORKER, change, connect_to_each, fake_service, programs, switch
from tests.fake.backend import command
from tests.fake.model import write_model
from tests.servers import metric, wait_for

pytestmark = pytest.mark.slow


def test_a_version_that_a_web_process_cannot_serve_leaves_the_one_before(tmp_path: Path) -> None:
    folder = exports.saved(tmp_path / "tiny", exports.word_piece(), {})

    def describe(version: str, **changed: str) -> None:
        (place := folder / version).mkdir(exist_ok=True)
        shutil.copy(folder / "model.onnx", place)
        files = {
            name: graphs.digest(folder / name) for name in (f"{version}/model.onnx", "tokenizer.json")
        }
        text = {"max_tokens": 64, "pad_token_id": 0}
        content = {"name": "tiny", "version": version, "task": "text-classification", "text": text}
        content |= {"labels": exports.LABELS, "files": files | changed}
        (folder if version == "1" else place).joinpath("model.json").write_text(json.dumps(content))

    describe("1")
    describe("2", **{"tokenizer.json": "0" * 64})  # only web processes read it
    settings = {"SERVING_MODEL_DIR": str(folder), **servers.UNMEASURED}
    keys = {"admin_key": "chief", "web_processes": "2"}
    with fake_service(settings, package="fastapi_onnx", **keys) as (url, server):
        refused = switch(url, "2", model="tiny")
        assert refused.status_code == 400
        assert "tokenizer.json" in refused.json()["error"]
        assert len(programs(server, WORKER)) == 1
        for _ in range(4):  # whichever web process answers
            assert requests.get(f"{url}/model", timeout=60).json()["version"] == "1"
            body = {"text": "a warm soup"}
            assert requests.post(f"{url}/predict", json=body, timeout=60).status_code == 200
        describe("2")
        assert switch(url, "2", model="tiny").status_code == 200
        assert requests.get(f"{url}/model", timeout=60).json()["version"] == "2"


def test_a_loaded_model_is_found_on_every_connection(
    fake_settings: dict[str, str], tmp_path: Path
) -> None:
    for version in ("1", "2"):
        write_model(tmp_path / "store" / f"other{version}", "1", f"{version}-", aliases={})
    more = {"model_store": str(tmp_path / "store"), "admin_key": "chief", "web_processes": "2"}
    with fake_service(fake_settings, **more) as (url, server), ExitStack() as held:
        connections = connect_to_each(url, programs(server, WEB), held)
        for name in ("other1", "other2"):
            assert change(url, name, "load").status_code == 200
            for connection in connections:
                connection.request("POST", f"/predict/{name}", command(class_index=3))
                answer = connection.getresponse()
                assert (answer.status, json.loads(answer.read())["prediction"]) == (200, f"{name[-1]}-3")


def test_an_unload_ends_although_a_dead_web_process_left_a_hanging_worker(
    fake_settings: dict[str, str], tmp_path: Path, senders: ThreadPoolExecutor
) -> None:
    write_model(tmp_path / "other", "1", name="other", aliases={})
    models = f"{fake_settings['SERVING_MODEL_DIR']},{tmp_path / 'other'}"
    settings = {**fake_settings, "SERVING_MODELS": models, "SERVING_WORKER_TIMEOUT_MS": "1000"}
    more = {"admin_key": "chief", "web_processes": "2", "instances": "1"}
    with fake_service(settings, **more) as (url, server):
        wait_for(
            lambda: requests.get(f"{url}/health/ready", timeout=60).json()["models"]["other"] == "ready"
        )
        picture = command(held=True)
        held = senders.submit(requests.post, f"{url}/predict/other", data=picture, timeout=60)
        wait_for((tmp_path / "gate.held").exists)
        (worker,) = (each for each in programs(server, WORKER) if "/other" in " ".join(each.cmdline()))
        worker.send_signal(signal.SIGSTOP)
        webs = programs(server, WEB)
        for web in webs:
            web.kill()
        assert isinstance(held.exception(), requests.ConnectionError)
        wait_for(lambda: len(programs(server, WEB)) == 2 and not {*webs} & {*programs(server, WEB)})
        assert change(url, "other", "unload").status_code == 200
        assert len(programs(server, WORKER)) == 1
        wait_for(lambda: metric(url, "serving_free_slots") == 256)


def test_a_graph_with_a_thousand_inputs_reaches_every_process(tmp_path: Path) -> None:
    names = [f"a_rather_long_name_of_an_input_{index}" for index in range(1024)]
    graph = graphs.model(
        [graphs.node("Sum", " ".join(names), "sum")],
        [graphs.value(name, axes=("N", 2)) for name in names],
        [graphs.value("sum", axes=("N", 2))],
    )
    folder = graphs.saved(graph, tmp_path / "wide")
    settings = {"SERVING_MODELS": str(folder), **servers.UNMEASURED}
    more = {"package": "fastapi_onnx", "web_processes": "2"}
    with fake_service(settings, **more) as (url, server), ExitStack() as held:
        connect_to_each(url, programs(server, WEB), held)
        inputs = [
            {"name": name, "datatype": "FP32", "shape": [1, 2], "data": [index, 1]}
            for index, name in enumerate(names)
        ]
        for _ in range(4):
            answer = requests.post(f"{url}/v2/models/wide/infer", json={"inputs": inputs}, timeout=60)
            assert answer.json()["outputs"][0]["data"] == [sum(range(1024)), 1024]
