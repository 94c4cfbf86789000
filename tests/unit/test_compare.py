"""The parts of `python -m benchmarks compare`: tables, environments, the peers' shared work."""

import csv
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import compare, environments, machine, model, options, servers, table
from benchmarks.__main__ import app
from serving.settings import ROOT
from tests import pictures

FOOD = str(ROOT / "models" / "food11")


def row(per_second: float) -> table.Row:
    """A round of one load."""
    return {"per_second": per_second, "p50_ms": 2.0, "p99_ms": 3.0, "failed": 1}


@pytest.fixture
def results() -> table.Results:
    """Three rounds of two servers; the machine was slow in the second."""
    found: table.Results = {}
    for ours, its in ((100, 50), (20, 10), (90, 30)):
        table.keep(found, table.REFERENCE, {"16 connections": [row(ours)]})
        table.keep(found, "other", {"16 connections": [row(its)]})
    return found


def test_a_table_has_medians_ranges_and_ratios_of_each_round(results: table.Results) -> None:
    lines = dict(zip(table.HEAD, table.lines(results)[1], strict=True))
    assert lines == {
        "server": "other",
        "load": "16 connections",
        "per second": "30.0 (10.0 to 50.0)",
        "p50 ms": "2.0 (2.0 to 2.0)",
        "p99 ms": "3 (3 to 3)",
        "ours/its": "2.00 (2.00 to 3.00)",
        "failed": "3",
    }
    assert len({len(line) for line in table.text(results).splitlines()}) == 1


def test_one_round_has_no_range_and_no_service_no_ratio() -> None:
    only: table.Results = {"in process": {"2 threads": [{"per_second": 200.0}]}}
    assert table.lines(only) == [("in process", "2 threads", "200.0", "", "", "", "")]


def test_csv_has_a_row_a_round(results: table.Results, tmp_path: Path) -> None:
    table.write_csv(tmp_path / "new" / "figures.csv", results)
    with (tmp_path / "new" / "figures.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["server"], r["round"], float(r["per_second"])) for r in rows] == [
        *((table.REFERENCE, "1", 100), (table.REFERENCE, "2", 20), (table.REFERENCE, "3", 90)),
        *(("other", "1", 50), ("other", "2", 10), ("other", "3", 30)),
    ]


def test_servers_are_chosen_by_name() -> None:
    names = [server.name for server in compare.chosen(["ray", "this service"], servers.Pipeline.PLAIN)]
    assert names == ["this service", "ray"]
    everyone = compare.chosen([], servers.Pipeline.PLAIN)
    assert len({server.name for server in everyone}) == len(everyone) == len(servers.SERVERS)
    shared = compare.chosen([], servers.Pipeline.SHARED)
    assert {s.name for s in everyone} - {s.name for s in shared} == {"fastapi, onnx", "fastapi, torch"}
    with pytest.raises(typer.BadParameter, match="no server named nginx"):
        compare.chosen(["nginx"], servers.Pipeline.PLAIN)


def test_the_model_is_made_before_the_servers_are_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        folder.mkdir(parents=True)
        (folder / "model.json").write_text("{}")

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


@pytest.mark.parametrize("text", ["", "1,", "x", "0", "-1", "1.5"])
def test_numbers_are_checked(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        options.numbers(text)
    assert options.numbers("1, 16") == [1, 16]


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        (b'{"prediction": "Soup", "probability": 0.9}', "Soup"),
        (b'{"outputs": [{"name": "P", "data": [1]}, {"name": "LABEL", "data": ["Soup"]}]}', "Soup"),
    ],
)
def test_the_class_is_read_from_every_kind_of_answer(answer: bytes, label: str) -> None:
    assert servers.prediction(answer) == label


def test_an_environment_is_set_up_once_and_again_when_its_packages_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[Any], **_: object) -> None:
        commands.append([str(word) for word in command])
        (tmp_path / "peer").mkdir(exist_ok=True)

    monkeypatch.setattr(subprocess, "run", run)
    for version in ("1", "1", "2"):
        environment = environments.Environment("peer", (f"server=={version}",))
        python = environments.python_for(environment, tmp_path)
        assert python == tmp_path / "peer" / "bin" / "python"
    installed = [command[-1] for command in commands if "pip" in command]
    assert installed == ["server==1", "server==2"]
    assert len(commands) == 4


def test_a_failed_set_up_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[Any], **_: object) -> None:
        (tmp_path / "peer").mkdir(exist_ok=True)
        if "pip" in command:
            raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            environments.python_for(environments.Environment("peer", ("server",)), tmp_path)


def test_a_machine_is_named_with_its_versions() -> None:
    facts = machine.machine({"mosec: mosec": "0.9.8"})
    versions = facts["versions"]
    assert isinstance(versions, dict)
    assert versions["mosec: mosec"] == "0.9.8"
    assert versions["onnxruntime"]
    assert facts["cpu"]
    assert int(str(facts["cores"])) >= 1
