"""The load generators, on services that are slow or refuse on purpose: do they see what there was?"""

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import limit, overload, scale, stress
from benchmarks.__main__ import app
from benchmarks.h2load import Schedule
from smallplates.cli.commands import app as program
from smallplates.cli.load.loops import Arrivals, Plan
from smallplates.cli.load.payloads import SAMPLE, Protocol
from smallplates.cli.load.target import Target
from tests import servers
from tests.command_line import run
from tests.e2e.conftest import SharedService, obedient
from tests.fake.backend import command
from tests.servers import ROOT

pytestmark = pytest.mark.slow

SHORT = Plan(warm_up_s=0.1, window_s=0.4, fewest=2, most=2)


@pytest.fixture(scope="module")
def keyed(
    fake_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[Protocol, int]]]:
    """A service that wants a key: base URL, and its other ports."""
    ports = {Protocol.GRPC: servers.free_port(), Protocol.TCP: servers.free_port()}
    settings = {**obedient(fake_model, tmp_path_factory.mktemp("keyed")), "SERVING_API_KEY": "secret"}
    more = {f"SERVING_{protocol.upper()}_PORT": str(port) for protocol, port in ports.items()}
    with servers.api("tests.fake", {**settings, **more}) as url:
        yield url, ports


def test_a_closed_loop_sees_what_the_server_did_and_an_open_one_counts_from_when_a_request_was_due(
    fake_settings: dict[str, str],
) -> None:
    more = {"FAKE_MS": "50", "SERVING_INSTANCES": "1", "SERVING_MAX_BATCH_SIZE": "1"}
    with servers.api("tests.fake", {**fake_settings, **more}) as url:
        target = Target(url, [command()], Protocol.RAW)
        seen, late = target.closed(4, SHORT), target.open(60.0, Arrivals.POISSON, SHORT)
    assert set(seen.statuses) == {"200"}
    assert 0 < seen.p50 <= seen.p90 <= seen.p95 <= seen.p99 <= seen.longest
    assert seen.server_ms is not None
    assert seen.server_ms["infer"] >= 50
    assert seen.outside_ms is not None
    assert sum(seen.batch_sizes.values()) > 0
    assert seen.distribution[0][1] <= seen.distribution[-1][1]
    assert late.offered_per_second == 60
    assert late.longest > 200  # 60 a second at 20 a second: those at the end wait for many others


@pytest.mark.skipif(not shutil.which("h2load"), reason="h2load is not installed")
def test_overload_counts_answers_and_refusals(fake_settings: dict[str, str]) -> None:
    more = {"FAKE_MS": "20", "SERVING_INSTANCES": "1", "SERVING_MAX_BATCH_SIZE": "1"}
    settings = {**fake_settings, **more, "SERVING_QUEUE_SIZE": "4"}
    with servers.api("tests.fake", settings) as url, servers.process_of(url) as process:
        target = Target(url, [command()], Protocol.RAW)
        plan = Schedule.of(200)
        seen, looked_at, halfway = asyncio.run(overload.overload(target, plan, 2, process.pid))
    assert halfway > 10
    assert set(seen.answers) == {"200", "503"}
    assert plan.rate == 200
    assert 0 < sum(seen.answers.values()) <= 2 * 2 * 200  # a busy machine makes the two seconds longer
    assert seen.generator_cores > 0
    assert looked_at.without_retry_after == 0


@pytest.mark.parametrize("protocol", [Protocol.JSON, Protocol.RAW])
def test_load_prints_and_writes(
    one_worker: SharedService, tmp_path: Path, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/smallplates", "load"])  # whoever runs the tests
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("a.png", "b.png"):
        (photos / name).write_bytes(command())
    words = ["--protocol", protocol, "--photo", str(photos), "--concurrency", "1,3", "--window", "0.3"]
    words += ["--warm-up", "0", "--windows", "1", "--json", str(tmp_path / "load.json")]
    words += ["--csv", str(tmp_path / "load.csv"), "--plot", str(tmp_path / "load")]
    run(program, "load", one_worker.url, *words)
    content = json.loads((tmp_path / "load.json").read_text())
    assert content["command"].startswith("smallplates ")
    assert content["model"]["name"] == "fake"
    assert [row["load"] for row in content["results"]] == ["1 connection", "3 connections"]
    assert all(set(row["statuses"]) == {"200"} for row in content["results"])
    assert (tmp_path / "load.csv").read_text().count("\n") == 3
    assert (tmp_path / "load.png").stat().st_size > 1000
    assert b"<svg" in (tmp_path / "load.svg").read_bytes()


def test_load_warns_of_what_it_should_not_be_trusted_for(keyed: tuple[str, dict[Protocol, int]]) -> None:
    url, _ = keyed
    seen = Target(url, [command()]).closed(2, SHORT)
    assert set(seen.statuses) == {"401"}
    assert any("401" in warning for warning in seen.warnings())
    assert set(Target(url, [command()], key="secret").closed(2, SHORT).statuses) == {"200"}


@pytest.mark.parametrize(
    ("protocol", "refused"), [(Protocol.GRPC, "unauthenticated"), (Protocol.TCP, "401")]
)
def test_other_wires(keyed: tuple[str, dict[Protocol, int]], protocol: Protocol, refused: str) -> None:
    url, ports = keyed
    strange = Target(url, [command()], protocol, port=ports[protocol]).exactly(1, 1)
    seen = Target(url, [command()], protocol, "secret", port=ports[protocol]).exactly(25, 4)
    assert strange.statuses == {refused: 1}
    assert seen.statuses == {"200": 25}
    assert seen.server_ms is not None
    assert 0 < seen.p50 <= seen.longest
    with pytest.raises(ValueError, match="--port is required for grpc and tcp"):
        Target(url, [command()], protocol)


def test_stress_runs_clients_as_processes(one_worker: SharedService) -> None:
    seen = stress.stress(one_worker.url, command(), simultaneous=2, total=3, requests=4)
    assert (seen.answered, seen.failed) == (12, 0)
    assert 0 < seen.mean_ms <= seen.slowest_ms


def test_limit_measures_every_layout_of_a_backend() -> None:
    experiments = limit.Limit(ROOT / "models" / "food11", SAMPLE.read_bytes(), "cpu", 0.05, 1)
    figures_by_name = limit.measure(
        experiments, ["fastapi_onnx", "no_such_backend"], [1, 2], 2, ["fp32", "fp16"]
    )
    assert [figure.instances for figure in figures_by_name["decode"]] == [1, 2]
    # three layouts, two batch sizes; no fp16
    assert len(figures_by_name["infer"]) == len(figures_by_name["whole"]) == 6
    assert all(figure.per_second > 0 for figures in figures_by_name.values() for figure in figures)


@pytest.mark.skipif(not shutil.which("wrk"), reason="wrk is not installed")
def test_scale_says_what_each_part_took(tmp_path: Path) -> None:
    cases = ["--service-ms=4", "--web-processes=1,2", "--instances=2", "--connections=8"]
    brief = ["--rounds=1", "--seconds=1", "--fp32-ms=5", "--int8-ms=2", f"--json={tmp_path / 'json'}"]
    run(app, "scale", *cases, *brief)
    results = json.loads((tmp_path / "json").read_text())["results"]
    assert [row["web processes"] for row in results["measured"]] == [1, 2]
    for row in results["measured"]:
        assert row["failed"] == 0
        assert row["1/s"] > 0
        assert sum(row[f"{part} ms"] for part in ("web", "worker", "wrk")) > 0  # in steps of 10 ms
    assert results["worker_ms"] == {"fp32": 5, "int8": 2}
    times = results["web_ms"], results["worker_ms"], results["ceiling"]
    assert results["calculated"] == scale.calculated(*times)
