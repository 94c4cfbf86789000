"""`python -m benchmarks jobs` on a small network: every picture is classified, every figure is there."""

import csv
import json
from pathlib import Path

import pytest

from benchmarks import jobs_command
from benchmarks.__main__ import app
from tests import pictures, servers
from tests.command_line import run

pytestmark = [pytest.mark.slow, pytest.mark.torch]

IMAGES = 3


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "wide.jpg").write_bytes(pictures.jpeg(320, 240))
    (folder / "tall.jpg").write_bytes(pictures.jpeg(200, 300))
    return folder


def test_all_arrangements_answer_the_same(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_command, "ROOT", tmp_path)  # the model is made in `runs/`
    monkeypatch.setattr(jobs_command, "CLASSES", 10)
    for name in ("SERVING_CPU_RUNTIME", "SERVING_PRECISION"):
        monkeypatch.setenv(name, servers.UNMEASURED[name])
    network = ["--architecture", "mobilenet_v3_small"]  # with random weights
    options = [*network, "--photos", str(photos), "--backend", "fastapi_onnx"]
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
        assert 0 < outcome["load_share"] < 1
        assert 0 < outcome["classify_s"] < outcome["seconds"]
        assert outcome["memory_mb"] > 10
        assert outcome["cpu_percent"] > 0
        assert outcome["arrangement"].partition(",")[0] in said  # the rest may be on the next line
        has_model = outcome["instances"] == 0
        assert (outcome["importing"] > 0, outcome["loading"] > 0) == (has_model, has_model)
        assert outcome["importing"] + outcome["loading"] < 1
    assert kept["machine"]["versions"]["torch"]
    assert f"--images {IMAGES}" in kept["command"]
    with (tmp_path / "csv").open(newline="") as file:
        assert [float(row["seconds"]) for row in csv.DictReader(file)] == [
            outcome["seconds"] for outcome in outcomes
        ]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "plot.svg").read_text()
