"""`python -m benchmarks compare`, with the servers that need no installation."""

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from benchmarks import compare, servers, table, text_model
from benchmarks.__main__ import app
from smallplates.settings import ROOT
from smallplates.system import cpus
from tests.command_line import run

pytestmark = [pytest.mark.slow, pytest.mark.torch]

FOOD = str(ROOT / "models" / "food11")


@pytest.mark.skipif(not shutil.which("wrk"), reason="wrk is not installed")
def test_pictures_are_answered_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tutorial's handlers run in this project's own environment, which has all they need."""
    ours = [replace(s, environment=None) for s in servers.SERVERS if s.name.startswith("fastapi")]
    monkeypatch.setattr(compare, "SERVERS", [servers.ours("this service"), *ours])
    files = [f"--json={tmp_path / 'json'}", f"--csv={tmp_path / 'csv'}"]
    sizes = ["--rounds=1", "--seconds=1", "--connections=2"]
    said = run(app, "compare", "--model", FOOD, *sizes, *files)
    assert "answers" not in said
    kept = json.loads((tmp_path / "json").read_text())
    measured = {name: loads for name, loads in kept["results"].items() if name != table.IN_PROCESS}
    assert list(measured) == ["this service", "fastapi, onnx", "fastapi, torch"]
    for loads in measured.values():
        assert list(loads) == ["2 connections"]
        ((row,),) = loads.values()
        assert row["failed"] == 0
        assert row["requests"] > 0
        assert row["per_second"] == pytest.approx(row["requests"] / row["seconds"])
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert all(word in said for word in ("ours/its", "fastapi", "torch"))
    in_process = kept["results"][table.IN_PROCESS]
    assert (tmp_path / "csv").read_text().count("\n") == 1 + len(measured) + len(in_process)


@pytest.mark.skipif(not shutil.which("wrk"), reason="wrk is not installed")
def test_texts_are_sent_in_turn(tmp_path: Path) -> None:
    name = "this service, one by one"
    text_model.make(tmp_path / "texts", width=24, layers=1)
    sizes = ["--rounds=1", "--seconds=1", "--connections=8", f"--json={tmp_path / 'json'}"]
    run(app, "compare", "--task=text", "--model", tmp_path / "texts", f"--only={name}", *sizes)
    kept = json.loads((tmp_path / "json").read_text())
    assert kept["command"].startswith("python -m benchmarks compare --task text --model texts ")
    ((row,),) = kept["results"][name].values()
    assert (row["failed"], row["requests"] > 0) == (0, True)
    assert set(kept["results"][table.IN_PROCESS]) == {f"{n} threads" for n in {1, cpus.usable()}}


@pytest.mark.skipif(not shutil.which("wrk"), reason="wrk is not installed")
def test_vectors_of_one_text_and_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers answer the vectors of this process, and texts are counted, not requests."""
    monkeypatch.setattr(text_model, "EMBEDDING_WIDTH", 24)
    folder = text_model.ensure_embedding(tmp_path / "vectors")
    names = ("this service", "fastapi, onnx")
    both = [replace(s, environment=None) for s in servers.EMBEDDING_SERVERS if s.name in names]
    monkeypatch.setattr(compare, "EMBEDDING_SERVERS", both)
    sizes = ["--rounds=1", "--seconds=1", "--connections=2", f"--json={tmp_path / 'json'}"]
    run(app, "compare", "--task=embed", "--model", folder, *sizes)
    results = json.loads((tmp_path / "json").read_text())["results"]
    sizes_of_loads = {"2 connections": 1, "4 connections, 32 texts each": 32}
    for name, (load, texts) in product(names, sizes_of_loads.items()):
        (row,) = results[name][load]
        assert row["failed"] == 0
        assert row["per_second"] == pytest.approx(texts * row["requests"] / row["seconds"])
