"""The arithmetic of the benchmarks: what is recorded, when it is steady, how it is written down."""

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare_report, notebook, table
from smallplates.cli.load import machine, report
from smallplates.cli.load.http_client import Answer, post
from smallplates.cli.load.measurement import Measurement
from smallplates.cli.load.payloads import photos
from smallplates.cli.load.recorder import Recorder, are_stable, merge, ms
from smallplates.cli.load.server_side import Scrape
from tests.pictures import jpeg

OK = Answer(
    "200", b"http/1.1 200 ok\r\nserver-timing: decode;dur=1, queue;dur=2, infer;dur=3, total;dur=7"
)


def window(per_second: int, latency_s: float) -> Recorder:
    recorder = Recorder(seconds=1.0)
    for _ in range(per_second):
        recorder.add(OK, latency_s)
    return recorder


def test_percentiles_and_the_servers_own_stages() -> None:
    recorder = Recorder(seconds=2.0)
    for index in range(1, 1001):
        recorder.add(OK, index / 1000)
    assert ms(recorder.latency, 50) == pytest.approx(500, rel=0.002)
    assert ms(recorder.latency, 99) == pytest.approx(990, rel=0.002)
    assert recorder.per_second == 500
    stages = {"decode": 1, "queue": 2, "infer": 3, "total": 7, "rest": 1}
    assert recorder.server_ms() == pytest.approx(stages, rel=0.005)
    percentiles = [percentile for percentile, _ in recorder.distribution()]
    assert percentiles == sorted(percentiles)
    assert 99.8 < percentiles[-1] < 100


def test_other_answers_are_counted_and_not_timed() -> None:
    recorder = Recorder(seconds=1.0)
    recorder.add(Answer("503", b"http/1.1 503 busy\r\nretry-after: 1"), 0.5)
    recorder.add(Answer("503", b"http/1.1 503 busy\r\nx-retry-after: 5"), 0.5)
    recorder.add(Answer("failed", b""), 9)
    assert recorder.statuses == {"503": 2, "failed": 1}
    assert recorder.latency.get_total_count() == 0
    assert recorder.without_retry_after == 1
    assert recorder.server_ms() is None
    assert recorder.distribution() == []


def test_the_commit_is_that_of_what_measurements_do_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.commit() == ""
    for name in ("code.py", "notebooks/1.ipynb", "benchmarks/results/1.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for command in (
        ["init"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a", "commit", "-mx"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)
    clean = machine.commit()
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    for name in ("notebooks/1.ipynb", "benchmarks/results/1.json"):
        (tmp_path / name).write_text("measured")
    assert machine.commit() == clean
    (tmp_path / "code.py").write_text("changed")
    assert machine.commit() == f"{clean}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert machine.commit() == ""


def seen(**figures: Any) -> Measurement:  # Any: of all their types
    usual: dict[str, Any] = {
        "load": "one",
        "motor": "python",
        "seconds": 4.0,
        "per_second": 100.0,
        "statuses": {"200": 400},
    }
    usual |= dict.fromkeys(("p50", "p90", "p95", "p99", "longest"), 1.0)
    return Measurement(**usual | {"stable": True, "generator_cores": 0.1, "machine_busy": 0.5} | figures)


@pytest.mark.parametrize(
    ("figures", "others", "doubtful"),
    [
        ({}, 0.0, False),
        ({}, 1.0, True),
        ({"stable": False}, 0.0, True),
        ({"stable": False, "offered_per_second": 101.0, "late_p99": 1.0}, 0.0, False),
        ({"offered_per_second": 120.0, "late_p99": 1.0}, 0.0, True),
        ({"offered_per_second": 100.0, "late_p99": 9.0}, 0.0, True),
        ({"statuses": {"200": 400, "503": 1}}, 0.0, True),
    ],
)
def test_what_makes_a_measurement_doubtful(
    figures: dict[str, Any], others: float, doubtful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = itertools.count(0.0, 1e6 * others)  # seconds of other programs, in no time
    monkeypatch.setattr(notebook, "others_seconds", lambda: next(used))
    measured = []

    def measure() -> Measurement:
        measured.append(seen(**figures))
        return measured[-1]

    _, reasons = notebook.undisturbed(measure)
    assert (len(measured), bool(reasons)) == ((2, True) if doubtful else (1, False))


def test_latencies_within_a_tenth_are_about_the_same() -> None:
    for after, verdict in ((10.9, "about the same"), (12.0, "longer"), (8.0, "shorter")):
        assert notebook.compared(10.0, after).endswith(verdict)


def test_windows_are_merged() -> None:
    whole = merge([window(10, 0.1), window(30, 0.3)])
    assert whole.per_second == 20
    assert ms(whole.latency, 50) == pytest.approx(300, rel=0.002)


@pytest.mark.parametrize(
    ("windows", "steady"),
    [
        ([window(100, 0.1), window(105, 0.1)], False),  # two are not three
        ([window(100, 0.1), window(105, 0.1), window(109, 0.1)], True),
        ([window(50, 0.1), window(100, 0.1), window(105, 0.1), window(109, 0.1)], True),
        ([window(100, 0.1), window(105, 0.1), window(115, 0.1)], False),
        ([window(100, 0.1), window(100, 0.1), window(100, 0.12)], False),
        ([window(0, 0.1)] * 3, False),
    ],
)
def test_steady_means_three_windows_within_a_tenth(windows: list[Recorder], steady: bool) -> None:
    assert are_stable(windows) is steady


def test_a_post_on_the_wire() -> None:
    wire = post("http://127.0.0.1:81", "/predict", {"A": "b"}, b"body")
    assert (
        wire == b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:81\r\nA: b\r\nContent-Length: 4\r\n\r\nbody"
    )
    with pytest.raises(ValueError, match="http://"):
        post("https://127.0.0.1", "/", {}, b"")


def test_photos_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no images"):
        photos(tmp_path)
    (tmp_path / "b.jpg").write_bytes(jpeg())
    (tmp_path / "a.png").write_bytes(b"first")
    (tmp_path / "notes.txt").write_text("not a picture")
    assert photos(tmp_path) == [b"first", jpeg()]
    assert photos(tmp_path / "a.png") == [b"first"]


def scrape(*buckets: int, images: int) -> Scrape:
    """Cumulative counts of batches of up to one image, two, and any number."""
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
        ("serving_batch_size_bucket", (("le", bound),)): float(count)
        for bound, count in zip(("1.0", "2.0", "+Inf"), buckets, strict=True)
    }
    samples["serving_batch_size_count", ()] = float(buckets[-1])
    samples["serving_batch_size_sum", ()] = float(images)
    return Scrape(samples)


def test_batches_between_two_looks_at_the_metrics() -> None:
    seen = scrape(14, 19, 20, images=40).since(scrape(10, 10, 10, images=10))
    assert seen.batch_sizes() == {"1": 4, "2": 5, "inf": 1}
    assert seen.mean_batch() == 3.0
    assert seen.mean_ms() == {}


def rows(*per_second: float, p99: float = 10) -> list[dict[str, float]]:
    return [{"per_second": value, "p50_ms": 5, "p99_ms": p99} for value in per_second]


def test_each_precision_is_compared_with_its_own() -> None:
    def measured(*per_second: float) -> dict[str, Any]:
        costs = {"memory_mb": 300.4, "cpu_s_per_1000": 6.25}
        return {"16 connections": [{**row, **costs} for row in rows(*per_second)]}

    results: dict[str, Any] = {
        table.IN_PROCESS: {"2 threads": rows(200)},
        table.IN_PROCESS + table.ENDS["int8"]: {"2 threads": rows(400)},
        compare_report.OURS: measured(100),
        "mosec": measured(80),
        compare_report.OURS + table.ENDS["int8"]: measured(300),
        "mosec, int8": measured(330),
        "triton, int8": measured(150),
    }
    text = compare_report.compare({"results": results})
    assert "| this service, int8 | 300/s, p99 10 ms |" in text
    assert "| mosec, int8 | 330/s, p99 10 ms, x 0.91 | 300 MB | 6.2 ms |" in text
    ahead = "mosec, int8 handles 1.10 times as many requests at 16 connections"
    assert f"Ahead of this service: {ahead}. Of the best" in text
    assert "reaches 0.50 at 16 connections; 0.75 at 16 connections in int8." in text


def test_results_name_their_command_and_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--photo", str(tmp_path / "a photo.jpg")]
    monkeypatch.setattr("sys.argv", ["/there/benchmarks/__main__.py", "limit", *arguments])
    assert report.command() == "python -m benchmarks limit --photo 'a photo.jpg'"
    monkeypatch.setattr("sys.argv", ["/bin/smallplates", "load", *arguments])
    machine.write_results(tmp_path / "r" / "x.json", report.command(), [1])
    content = json.loads((tmp_path / "r" / "x.json").read_text())
    assert content["command"] == "smallplates load --photo 'a photo.jpg'"
    assert {"cpu", "cores", "python", "commit"} <= set(content["machine"])
    assert content["results"] == [1]
    facts = machine.machine({"mosec: mosec": "0.9.8"})
    versions = facts["versions"]
    assert isinstance(versions, dict)
    assert versions["mosec: mosec"] == "0.9.8"
    assert versions["onnxruntime"]
