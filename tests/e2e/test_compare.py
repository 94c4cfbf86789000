"""`python -m benchmarks compare`, with the servers that need no installation."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import compare, running, servers, table
from benchmarks.__main__ import app
from serving.settings import ROOT

FOOD = str(ROOT / "models" / "food11")


@pytest.mark.skipif(not shutil.which("wrk"), reason="wrk is not installed")
def test_every_server_is_measured_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tutorial's handlers run in this project's own environment, which has all they need."""
    own = [replace(s, environment=None) for s in servers.SERVERS if s.name.startswith("fastapi")]
    monkeypatch.setattr(compare, "SERVERS", [servers.ours("this service"), *own])
    files = [f"--json={tmp_path / 'json'}", f"--csv={tmp_path / 'csv'}"]
    sizes = ["--rounds=2", "--seconds=1", "--connections=2"]
    result = CliRunner().invoke(
        app, ["compare", "--model", FOOD, *sizes, *files], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    assert "answers" not in result.output
    kept = json.loads((tmp_path / "json").read_text())
    measured = {name: loads for name, loads in kept["results"].items() if name != table.IN_PROCESS}
    assert list(measured) == ["this service", "fastapi, onnx", "fastapi, torch"]
    for loads in measured.values():
        assert list(loads) == ["2 connections"]
        for rows in loads.values():
            assert len(rows) == 2
            for row in rows:
                assert row["failed"] == 0
                assert row["requests"] > 0
                assert row["per_second"] == pytest.approx(row["requests"] / row["seconds"])
                assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert "fastapi, torch" in result.output
    assert (tmp_path / "csv").read_text().count("\n") == 1 + 2 * 3 + 2 * len(
        kept["results"][table.IN_PROCESS]
    )


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    start = running.running(
        servers.ours("this service"), tmp_path, tmp_path, servers.Pipeline.PLAIN, b"{}"
    )
    with pytest.raises(RuntimeError, match="the service cannot start: no model in"), start:
        pass
