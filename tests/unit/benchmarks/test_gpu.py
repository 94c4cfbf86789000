"""`python -m benchmarks gpu`, with stand-ins for what only a GPU can measure."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu, gpu_report

LOAD = {"per_second": 1000.0, "p50": 2.0, "p99": 4.0}
DESCRIBED = {"precision": "fp16", "max_batch_size": 8}
SERVED = {
    "backend": "fastapi_pt",
    "model": gpu.SMALL,
    "described": DESCRIBED,
    **dict.fromkeys(("fewer", "raw", "json", "one", "half", "most"), LOAD),
}
ALONE = {
    "model": gpu.SMALL,
    "backend": "fastapi_pt",
    "precision": "fp16",
    "graphs": True,
    "batch": 8,
    "per_second": 4000.0,
}


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, and a service that fails after its first model was measured."""

    def served(*_: object) -> Iterator[dict[str, Any]]:
        yield SERVED
        raise ConnectionError("the machine was taken away")

    facts = {"name": "some GPU", "memory": "80 GiB", "driver": "580"}
    monkeypatch.setattr(gpu, "gpu_facts", lambda: facts)
    monkeypatch.setattr(gpu, "decoding", lambda *_: {"processes": 16, "per_second": 2000.0})
    monkeypatch.setattr(gpu, "alone", lambda *_: iter([ALONE]))
    monkeypatch.setattr(gpu, "served", served)


def test_what_was_measured_before_a_failure_is_kept(tmp_path: Path) -> None:
    """The file has every figure from before, and a report can be made of it."""
    with pytest.raises(ConnectionError):
        gpu.main(json_file=tmp_path / "gpu.json")
    figures = json.loads((tmp_path / "gpu.json").read_text())["results"]
    assert [*figures] == ["gpu", "decoding", "alone", "served"]
    assert figures["alone"] == [ALONE, ALONE]  # one for each network
    assert figures["served"] == [SERVED]
    text = gpu_report.report(figures)
    assert "mobilenet_v2, fastapi_pt: 0.25" in text  # of the device alone
    assert "| 0.50 |" in text  # of decoding alone


def test_one_part_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other parts are neither measured nor reported."""
    gpu.main([gpu.Part.ALONE], json_file=tmp_path / "gpu.json")
    figures = json.loads((tmp_path / "gpu.json").read_text())["results"]
    assert [*figures] == ["gpu", "alone"]
    assert "device alone" in (printed := capsys.readouterr().out)
    assert "served" not in printed
