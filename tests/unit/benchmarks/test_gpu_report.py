"""`benchmarks gpu`, as far as a machine without a GPU goes: its report, and its refusal."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks import chapters, environments, gpu, gpu_report
from benchmarks.servers import GPU_SERVERS


def loaded(per_second: float, p50: float, p99: float) -> dict[str, float]:
    """What a load measured."""
    return {"per_second": per_second, "p50": p50, "p99": p99}


def compared(per_second: float) -> dict[str, float]:
    """One round of a server."""
    return {"per_second": per_second, "p50_ms": 1.0, "p99_ms": 2.0, "failed": 0}


def rows(backend: str, precision: str, graphs: bool) -> list[dict[str, Any]]:
    """A device that is best at 32 and faster with graphs."""
    kind = {"model": "m", "backend": backend, "precision": precision, "graphs": graphs}
    rates = {64: 900.0, 32: 1000.0, 1: 100.0}
    return [{**kind, "batch": b, "per_second": r * (1 + graphs)} for b, r in rates.items()]


FIGURES: dict[str, Any] = {
    "gpu": {"name": "NVIDIA Test", "memory": "16 GiB", "driver": "600.1"},
    "decoding": {"per_second": 2000.0},
    "alone": [*rows("fastapi_pt", "fp32", False), *rows("fastapi_pt", "fp16", True)],
    "served": [
        {
            "model": "m",
            "backend": "fastapi_pt",
            "described": {"precision": "fp16", "max_batch_size": 64},
            "raw": loaded(1620.0, 20.0, 40.0),
            "fewer": loaded(1500.0, 10.0, 20.0),
            "json": loaded(1296.0, 25.0, 50.0),
            "one": loaded(100.0, 4.0, 5.0),
            "half": loaded(810.0, 5.0, 12.5),
            "most": loaded(1296.0, 5.0, 20.0),
        },
        {
            "model": "large",
            "backend": "fastapi_pt",
            "described": {"precision": "fp16", "max_batch_size": 64},
            "raw": loaded(500.0, 20.0, 40.0),
            "fewer": loaded(400.0, 10.0, 20.0),
        },
    ],
    "peers": {
        "this service": {
            "256 connections": [{**loaded(90.0, 1, 1), "p50_ms": 1, "p99_ms": 2, "failed": 0}]
        },
        "mosec": {"256 connections": [compared(60.0)]},
    },
}


def test_the_report_has_the_best_batches_and_the_ratios(tmp_path: Path) -> None:
    text = gpu_report.report(FIGURES)
    assert "| m, fastapi_pt | fp32 | kernels | 1000 | 32 |" in text
    assert "| m, fastapi_pt | fp16 | graphs | 2000 | 32 |" in text
    assert "| m, fastapi_pt | 1620 | 40.0 | 1500 | 20.0 | 0.81 | 0.80 | 12.5 | 1.25 |" in text
    assert "| large, fastapi_pt | 500 | 40.0 | 400 | 20.0 |  |  |  |  |" in text
    assert "at the batch that was chosen: m, fastapi_pt: 0.90." in text
    assert "| mosec | 256 connections | 60.0 | 1.0 | 2 |  |  | 1.50 | 0 |" in text
    machine = {"cpu": "a CPU", "cores": "16", "python": "3.11.1", "commit": "abc"}
    content = {"command": "python -m benchmarks gpu", "machine": machine, "results": FIGURES}
    assert chapters.chapter("gpu", tmp_path).startswith("Not measured: ")
    (tmp_path / "gpu.json").write_text(json.dumps(content))
    chapter = chapters.chapter("gpu", tmp_path)
    assert chapter.startswith("`python -m benchmarks gpu`, 16 cores of a CPU")
    assert text in chapter


def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pynvml = pytest.importorskip("pynvml")

    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    with pytest.raises(typer.BadParameter, match="no GPU to measure"):
        gpu.gpu_facts()


def test_peers_on_a_gpu_get_the_build_with_cuda() -> None:
    commons = {server.name: server.environment.common for server in GPU_SERVERS if server.environment}
    assert set(commons) == {"mosec", "litserve"}
    assert all("onnxruntime-gpu[cuda,cudnn]" in common for common in commons.values())
    assert "onnxruntime" in environments.Environment("peer", ("server",)).common
