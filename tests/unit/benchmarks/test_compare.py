"""The parts of `python -m benchmarks compare`: tables, environments, the peers' shared work."""

import csv
import json
import shutil
import subprocess
import sys
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import compare, environments, model, servers, table, text_limit, text_model
from benchmarks.__main__ import app
from benchmarks.peers.text import ClassifyTexts
from benchmarks.servers import Pipeline
from smallplates.cli.load import options
from smallplates.settings import ROOT
from tests import pictures

FOOD = str(ROOT / "models" / "food11")


def row(per_second: float) -> table.Row:
    """A round of one load."""
    latencies = {"p50_ms": 2.0, "p99_ms": 3.0}
    return {"per_second": per_second, **latencies, "failed": 1, "cpu_s_per_1000": 6.0, "memory_mb": 300}


@pytest.fixture
def results() -> table.Results:
    """Three rounds of two servers; the machine was slow in the second."""
    kept: table.Results = {}
    for ours, its in ((100, 50), (20, 10), (90, 30)):
        table.keep(kept, table.REFERENCE, {"16 connections": [row(ours)]})
        table.keep(kept, "other", {"16 connections": [row(its)]})
    return kept


def test_a_table_has_medians_ranges_and_ratios_of_each_round(results: table.Results) -> None:
    assert table.lines(results)[1] == {
        "server": "other",
        "load": "16 connections",
        "per second": "30.0 (10.0 to 50.0)",
        "p50 ms": "2.0 (2.0 to 2.0)",
        "p99 ms": "3 (3 to 3)",
        "CPU s/1000": "6.00 (6.00 to 6.00)",
        "MB": "300 (300 to 300)",
        "ours/its": "2.00 (2.00 to 3.00)",
        "failed": "3",
    }
    only: table.Results = {"in process": {"2 threads": [{"per_second": 200.0}]}}  # no range, no ratio
    assert [*table.lines(only)[0].values()] == ["in process", "2 threads", "200.0", *[""] * 6]


def test_int8_is_compared_with_int8(results: table.Results) -> None:
    names = (table.REFERENCE, "other", table.IN_PROCESS)
    ours, its, limit = (name + table.ENDS["int8"] for name in names)
    for per_second in (400, 300, 500):
        table.keep(results, ours, {"1 connections": [row(100)], "16 connections": [row(per_second)]})
        table.keep(results, its, {"16 connections": [row(200)]})
        table.keep(results, limit, {"2 threads": [{"per_second": per_second}]})
    ratios = {line["server"]: line["ours/its"] for line in table.lines(results)}
    assert ratios[its] == "2.00 (1.50 to 2.50)"
    assert ratios["other"] == "2.00 (2.00 to 3.00)"
    assert table.shares(results, ours) == {"16 connections": 0.8}
    assert table.shares(results, table.REFERENCE) == {}  # fp32 was not measured in process
    assert table.notes(results) == [f"{ours}: 0.80 of the best rate in process at 16 connections"]


def test_every_server_is_measured_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(server: servers.Server, *_: object) -> table.Loads:
        measured.append(server.name)
        return {"1 connections": [row(len(measured))]}

    def start(*_: object) -> Any:
        raise AssertionError

    monkeypatch.setattr(compare, "measure_server", measure)
    names = [server.name for server in servers.SERVERS[:2]]
    kept = compare.measure(["text"], lambda *_: 1.0, servers.SERVERS[:2], 2, 0.1, start)
    assert measured == [*names, *names]
    rates = [[line["per_second"] for line in kept[name]["1 connections"]] for name in names]
    assert rates == [[1, 3], [2, 4]]


def test_csv_has_a_row_a_round(results: table.Results, tmp_path: Path) -> None:
    table.write_csv(tmp_path / "new" / "figures.csv", results)
    with (tmp_path / "new" / "figures.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["server"], r["round"], float(r["per_second"])) for r in rows] == [
        *((table.REFERENCE, "1", 100), (table.REFERENCE, "2", 20), (table.REFERENCE, "3", 90)),
        *(("other", "1", 50), ("other", "2", 10), ("other", "3", 30)),
    ]


def test_servers_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(*names: str, pipeline: Pipeline = Pipeline.PLAIN, int8: bool = True) -> list[str]:
        return [server.name for server in compare.chosen(names, pipeline, int8)]

    monkeypatch.setattr(compare, "openvino_objection", lambda _: "")
    assert chosen("ray", "this service", "triton, int8") == ["this service", "ray", "triton, int8"]
    everyone = chosen()
    assert len(set(everyone)) == len(everyone) == len(servers.SERVERS) - 6  # without what peers are lent
    assert set(everyone) - set(chosen(pipeline=Pipeline.SHARED)) == {"fastapi, onnx", "fastapi, torch"}
    assert set(everyone) - set(chosen(int8=False)) == {"this service, int8"}
    with pytest.raises(typer.BadParameter, match="no server named nginx"):
        chosen("nginx")
    with pytest.raises(typer.BadParameter, match=r"the model has no model_quantized\.onnx"):
        chosen("mosec, int8", int8=False)
    monkeypatch.setattr(compare, "openvino_objection", lambda _: "no bf16 here")
    assert set(everyone) - set(chosen()) == {"this service, bf16"}
    with pytest.raises(typer.BadParameter, match="no bf16 here"):
        chosen("mosec, bf16")


def test_the_model_is_made_before_the_servers_are_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        folder.mkdir(parents=True)
        shutil.copy(Path(FOOD, "model.json"), folder)

    def set_up(*_: object) -> dict[str, str]:
        raise subprocess.CalledProcessError(len(made), "pip")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda _: "wrk")
    monkeypatch.setattr(model, "main", make)
    monkeypatch.setattr(environments, "versions", set_up)
    for _ in range(2):  # the second time, the model is there
        result = CliRunner().invoke(app, ["compare", "--only", "mosec"])
        assert isinstance(result.exception, subprocess.CalledProcessError)
        assert result.exception.returncode == 1
    assert made == [model.FOLDER]


@pytest.mark.parametrize("command", ["compare", "parts"])
def test_a_folder_without_a_model_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "wrk")
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(pictures.jpeg())
    result = CliRunner().invoke(app, [command, "--photo", str(photo), "--model", str(tmp_path)])
    assert result.exit_code == 2
    assert "there is no model.json in" in result.output


@pytest.mark.parametrize("text", ["", "1,", "x", "-1", "nan", "inf", "1;2"])
def test_numbers_are_checked(text: str) -> None:
    for parse in (options.numbers, options.milliseconds):
        with pytest.raises(typer.BadParameter):
            parse(text)
    assert (options.numbers("1, 16"), options.milliseconds("0, 1.5")) == ([1, 16], [0, 1.5])


@pytest.mark.parametrize(
    "answer",
    [
        b'{"prediction": "Soup", "probability": 0.9}',
        b'{"data": [[{"score": 0.1, "label": "Rice"}, {"score": 0.9, "label": "Soup"}]]}',
        b'{"outputs": [{"name": "PROBABILITY", "data": [0.9]}, {"name": "LABEL", "data": ["Soup"]}]}',
    ],
)
def test_the_class_is_read_from_every_kind_of_answer(answer: bytes) -> None:
    assert servers.prediction(answer) == ("Soup", 0.9)


@pytest.mark.parametrize(("pipeline", "name"), [("plain", "this service"), ("shared", "mosec")])
def test_a_server_that_answers_otherwise_stops_the_comparison(
    pipeline: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = compare.Probe.of_photo(Path(FOOD), pipeline, pictures.jpeg(300, 200))
    label, probability = probe.answer("plain", "fp32")
    (server,) = (server for server in servers.SERVERS if server.name == name)
    for more, agrees in ((0.0009, True), (0.0011, False), (-0.0011, False)):
        answer = json.dumps({"prediction": label, "probability": probability + more}).encode()
        monkeypatch.setattr(compare, "post", lambda *_, answer=answer: answer)
        with nullcontext() if agrees else pytest.raises(SystemExit, match=f"{name} answers "):
            probe.check(server, "")
    with pytest.raises(SystemExit):
        compare.require_same(name, ("other", 0.5), (label, 0.5))


def test_an_environment_is_set_up_once_and_again_if_it_failed_or_its_packages_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[str] = []

    def run(command: list[Any], **_: object) -> None:
        (tmp_path / "peer").mkdir(exist_ok=True)
        if "pip" in command:
            installed.append(str(command[-1]))
            if len(installed) == 1:
                raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(subprocess, "run", run)
    for version in ("1", "1", "1", "2"):
        environment = environments.Environment("peer", (f"server=={version}",))
        with nullcontext() if installed else pytest.raises(subprocess.CalledProcessError):
            assert environments.python_for(environment, tmp_path).is_relative_to(tmp_path / "peer")
    assert installed == ["server==1", "server==1", "server==2"]


def test_servers_of_texts_are_asked_as_they_want() -> None:
    bodies = {server.name: server.body("a text") for server in servers.TEXT_SERVERS}
    assert bodies["this service"] == bodies["mosec"] == bodies["litserve"] == {"text": "a text"}
    assert bodies["infinity"] == {"model": "model", "input": ["a text"]}
    assert bodies["triton"]["inputs"][0]["data"] == ["a text"]
    for server in servers.TEXT_SERVERS:
        if server.environment:
            assert server.command[2:] == ("MODEL", "PORT", "text")
            module = ROOT / f"{server.command[1].replace('.', '/')}.py"
            assert module.is_file()


def test_a_request_for_vectors_has_one_text_or_several() -> None:
    texts = ["a", "b", "c", "d", "e"]
    for server in servers.EMBEDDING_SERVERS:
        bodies = [json.loads(body) for body in compare.Load(4, 2).bodies(server, texts)]
        assert [body["input"] for body in bodies] == [["a", "b"], ["c", "d"]]
        bodies = [json.loads(body) for body in compare.Load(16).bodies(server, texts)]
        assert [body["input"] for body in bodies] == texts
        assert server.path.endswith("/embeddings")
    assert [str(compare.Load(4, 32)), str(compare.Load(16))] == [
        "4 connections, 32 texts each",
        "16 connections",
    ]


def test_texts_are_computed_in_process_by_length(tmp_path: Path) -> None:
    text_model.make(tmp_path, width=12, layers=1)
    texts = text_model.texts(40)
    seen: list[list[str]] = []

    class Classify:
        def __call__(self, batch: list[str]) -> list[str]:
            seen.append(batch)
            return batch

    run = text_limit.work(Classify(), texts, 0)  # type: ignore[arg-type]  # all that is called of one
    assert [run() for _ in range(5)] == [8] * 5
    assert sorted(text for batch in seen for text in batch) == sorted(texts)
    lengths = sorted((min(map(len, batch)), max(map(len, batch))) for batch in seen)
    assert all(most <= least for (_, most), (least, _) in pairwise(lengths))
    assert text_limit.in_process(ClassifyTexts, tmp_path, texts, 2, 0.05, "fp32") > 0


WITHOUT_OTHERS = """
import importlib, json, re, sys
from importlib import metadata

def needs(name, seen):
    name = re.split(r"[^A-Za-z0-9_.-]", name)[0].lower().replace("_", "-")
    if name not in seen:
        seen.add(name)
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            return
        for requirement in required:
            if "extra ==" not in requirement:
                needs(requirement, seen)

allowed = set()
for requirement in json.loads(sys.argv[1]):
    needs(requirement, allowed)
of_module = metadata.packages_distributions()

class Others:
    def find_spec(self, name, *_):
        owners = {owner.lower().replace("_", "-") for owner in of_module.get(name.partition(".")[0], ())}
        if owners and not owners & (allowed | {"smallplates"}):
            raise ModuleNotFoundError(f"{name} is of {owners}, which no peer installs")

sys.meta_path.insert(0, Others())
for module in ("benchmarks.peers.common", "benchmarks.peers.common_gpu", "benchmarks.peers.text"):
    importlib.import_module(module)
"""


def test_peers_install_all_that_their_shared_work_imports() -> None:
    wanted = json.dumps([*environments.COMMON, "onnxruntime"])
    command = [sys.executable, "-c", WITHOUT_OTHERS, wanted]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
