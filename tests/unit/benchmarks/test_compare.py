"""The parts of `python -m benchmarks compare`: tables, environments, the peers' shared work."""

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import typer

from benchmarks import compare, servers, table, table_model
from benchmarks.peers.table import ClassifyRows
from smallplates.cli.load import options
from smallplates.settings import ROOT
from tests import pictures

FOOD = str(ROOT / "models" / "food11")


def row(per_second: float) -> table.Row:
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


def test_peers_answer_a_row_as_the_graph_does(tmp_path: Path) -> None:
    path = table_model.ensure(tmp_path / "runs" / "table.onnx")
    row = table_model.rows(1)[0]
    body = json.dumps(servers.row_request(row)).encode()
    peer = ClassifyRows(str(path))
    (output,) = peer.body(body)["outputs"]
    assert output == peer.text(json.loads(body)["inputs"])["outputs"][0]
    assert output["data"] == pytest.approx(peer.infer(np.array([json.loads(row)], np.float32))[0])
    assert sum(output["data"]) == pytest.approx(1)
    for wrong in ([1, 3], [2, 4], [4]):
        with pytest.raises(ValueError, match="shape"):
            peer.body(body.replace(b"[1, 4]", json.dumps(wrong).encode()))
