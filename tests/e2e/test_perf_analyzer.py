"""Triton's load generator against a real service: it finishes, and its figures agree with ours.

Runs where `perf_analyzer` is on the PATH or named by SERVING_TEST_PERF_ANALYZER; the wheel of
tritonclient 2.47.0 has one, which needs libb64 and CUDA's runtime library.
"""

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests import pictures, servers

PROGRAM = os.environ.get("SERVING_TEST_PERF_ANALYZER") or shutil.which("perf_analyzer")
SHORT = ["-p", "2000", "-r", "3", "-s", "500", "--max-threads", "2"]
"""In a shorter window, a busy machine may answer nothing, which it calls a failure."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="needs perf_analyzer")]


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[str, str]]:
    """The base URL, and where gRPC is spoken."""
    port = str(servers.free_port())
    with servers.api("fastapi_onnx", {"SERVING_LOG_LEVEL": "warning", "SERVING_GRPC_PORT": port}) as url:
        yield url, f"127.0.0.1:{port}"


@pytest.fixture
def photo(tmp_path: Path) -> str:
    """A file with the input, as the tutorial writes it."""
    content = [base64.b64encode(pictures.jpeg()).decode()]
    path = tmp_path / "input.json"
    path.write_text(json.dumps({"data": [{"INPUT_IMAGE": {"content": content, "shape": [1]}}]}))
    return str(path)


def statistics(url: str, model: str) -> dict[str, Any]:
    answer = requests.get(f"{url}/v2/models/{model}/stats", timeout=60).json()
    model_statistics: dict[str, Any] = answer["model_stats"][0]
    return model_statistics


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("model", "batch", "load"),
    [
        ("food_classifier", 1, ["--concurrency-range", "1:4:3"]),
        ("food_classifier", 16, ["--concurrency-range", "1"]),
        ("food_classifier_onnx", 1, ["--request-rate-range", "20", "--request-distribution", "poisson"]),
    ],
)
def test_perf_analyzer_finishes(
    service: tuple[str, str], photo: str, protocol: str, model: str, batch: int, load: list[str]
) -> None:
    url, grpc_target = service
    target = url.removeprefix("http://") if protocol == "http" else grpc_target
    floats = ["--shape", "input:3,224,224"]  # random bits, infinities and NaN among them
    data = ["--input-data", photo] if model == "food_classifier" else floats
    before = statistics(url, model)
    command = [str(PROGRAM), "-m", model, "-b", str(batch), "-u", target, "-i", protocol]
    result = servers.run(*command, *data, *load, *SHORT)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    after = statistics(url, model)
    counts = {
        name: sum(int(n) for n in re.findall(rf"{text}: (\d+)", result.stdout))
        for name, text in (("inferences", "Inference count"), ("requests", "Successful request count"))
    }
    assert counts["inferences"] == counts["requests"] * batch > 0
    grown = after["inference_count"] - before["inference_count"]
    assert grown >= counts["inferences"]  # it also asks before and between what it counts
    assert after["inference_stats"]["fail"] == before["inference_stats"]["fail"]
    server = re.search(
        r"overhead (\d+) usec \+ queue (\d+) usec \+ compute input (\d+) usec \+ "
        r"compute infer (\d+) usec \+ compute output (\d+) usec",
        result.stdout,
    )
    assert server
    assert int(server[1]) <= 4  # its four parts, rounded, are all of a request's time
    assert int(server[4]) > 0


def test_streaming(service: tuple[str, str]) -> None:
    asked = ["-m", "food_classifier_onnx", "-u", service[1], "-i", "grpc", "--streaming"]
    before = statistics(service[0], "food_classifier_onnx")
    result = servers.run(str(PROGRAM), *asked, "--concurrency-range", "4", *SHORT)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    after = statistics(service[0], "food_classifier_onnx")
    assert after["inference_count"] > before["inference_count"]
    assert after["inference_stats"]["fail"] == before["inference_stats"]["fail"]
