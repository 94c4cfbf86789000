"""The page of ratios says what the results say, and that the rest was not measured."""

import json
from pathlib import Path
from typing import Any

from benchmarks import ratios

MACHINE = {"cpu": "X", "cores": "2", "python": "3.11", "commit": "abc"}


def keep(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    content = {"command": f"make {name}", "machine": MACHINE, "results": rows}
    (folder / f"{name}.json").write_text(json.dumps(content))


def cells(text: str) -> dict[str, str]:
    """Returns what the table says of each question."""
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0].removeprefix("| "): row[2] for row in rows[2:]}


def test_without_results_nothing_was_measured(tmp_path: Path) -> None:
    assert set(cells(ratios.ratios(tmp_path)).values()) == {ratios.MISSING}
    assert "lock.json" in ratios.lock(tmp_path)
    older = {"backend": "fastapi_onnx", "instances": 0, "max_batch_size": 1, "images_per_second": 1}
    keep(tmp_path, "jobs", [older])  # of another question
    assert set(cells(ratios.ratios(tmp_path)).values()) == {ratios.MISSING}


def test_ratios_of_the_results(tmp_path: Path) -> None:
    seen = {"p50": 1, "queue": 1, "max_batch_size": 16}
    keep(
        tmp_path,
        "triton",
        [
            {**seen, "question": "instances", "server": "triton", "instances": 1}
            | {"load": "1 photo", "per_second": 100},
            {**seen, "question": "instances", "server": "triton", "instances": 2}
            | {"load": "1 photo", "per_second": 150},
        ],
    )
    job = {"backend": "fastapi_onnx", "max_batch_size": 1, "importing": 0.4, "loading": 0.25}
    keep(
        tmp_path,
        "jobs",
        [
            {**job, "instances": 0, "images_per_second": 2},
            {**job, "instances": 1, "images_per_second": 5},
            {**job, "instances": 1, "max_batch_size": 8, "images_per_second": 6},
            {**job, "instances": 2, "images_per_second": 4},
        ],
    )
    text = ratios.ratios(tmp_path)
    assert "make triton" in text
    assert list(cells(text).values()) == [
        "triton: 1.50; this service: not measured",
        *[ratios.MISSING] * 4,
        "2.50",
        "3.00, +20 %",
        "2.00, -20 %",
        "25 %",
    ]
    row = {"backend": "fastapi_pt", "workers": 2, "threads_per_second": 10, "processes_per_second": 15}
    keep(tmp_path, "lock", [{**row, "processes_to_threads": 1.5, "rounds": [1.4, 1.6]}])
    assert "| fastapi_pt | 2 | 10/s | 15/s | 1.50 | 1.40 to 1.60 |" in ratios.lock(tmp_path)
