"""`python -m benchmarks jobs` on a small network: every picture is classified, every figure is there."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import app
from tests import pictures, servers
from tests.command_line import run

pytestmark = [pytest.mark.slow, pytest.mark.torch]

IMAGES = 3


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MobileNetV3-Small with random weights."""
    folder = tmp_path_factory.mktemp("jobs") / "small"
    options = ["--out", str(folder), "--architecture", "mobilenet_v3_small", "--classes", "10"]
    command = [sys.executable, "-m", "benchmarks", "model", *options]
    subprocess.run(command, cwd=servers.ROOT, check=True)
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "wide.jpg").write_bytes(pictures.jpeg(320, 240))
    (folder / "tall.jpg").write_bytes(pictures.jpeg(200, 300))
    return folder


def test_all_arrangements_answer_the_same(small_model: Path, photos: Path, tmp_path: Path) -> None:
    options = ["--model", str(small_model), "--photos", str(photos), "--backend", "fastapi_onnx"]
    sizes = ["--images", str(IMAGES), "--at-once", "2", "--instances", "1,2"]
    files = [f"--{kind}={tmp_path / kind}" for kind in ("json", "csv", "plot")]
    said = run(app, "jobs", *options, *sizes, *files)
    kept = json.loads((tmp_path / "json").read_text())
    outcomes = kept["results"]
    assert [(outcome["instances"], outcome["max_batch_size"]) for outcome in outcomes] == [
        *((0, 1), (1, 1), (1, 8), (2, 1))
    ]
    for outcome in outcomes:
        assert outcome["images"] == len(outcome["answers"]) == IMAGES
        assert outcome["answers"] == outcomes[0]["answers"]
        assert outcome["images_per_second"] == pytest.approx(IMAGES / outcome["seconds"])
        assert (outcome["start_s"] > 0) == (outcome["instances"] > 0)
        assert outcome["memory_mb"] > 10
        assert outcome["cpu_percent"] > 0
        assert outcome["arrangement"] in said
    assert kept["machine"]["versions"]["torch"]
    assert f"--images {IMAGES}" in kept["command"]
    with (tmp_path / "csv").open(newline="") as file:
        assert [float(row["seconds"]) for row in csv.DictReader(file)] == [
            outcome["seconds"] for outcome in outcomes
        ]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "plot.svg").read_text()
