"""`smallplates/ray/` without Ray: what a replica reports and adapts to, and the file that HAProxy
gets.
"""

import asyncio
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from smallplates.engine.statistics import BatchTotals, Totals
from smallplates.ray.middleware import WATCH_IS_OFF, RayMiddleware
from smallplates.ray.resources import replica_settings
from smallplates.ray.scaling import BUSY_SHARE, QUEUE_S, Load, follow_load
from smallplates.settings import ROOT

HAPROXY = """
frontend prometheus
    bind :9101
frontend http_frontend
    bind 127.0.0.1:8000
defaults
    option abortonclose
    errorfile 502 /tmp/500.http
    errorfile 503 /tmp/500.http
    errorfile 504 /tmp/500.http
backend http-default
    http-reuse always
listen stats
  bind *:8404
"""


def test_a_replica_without_a_gpu_uses_none() -> None:
    assert replica_settings(2, [], {}) == {"SERVING_IDLE_THREADS": "2", "SERVING_DEVICE": "cpu"}
    assert replica_settings(64, [], {"SERVING_DEVICE": "auto"}) == {"SERVING_IDLE_THREADS": "16"}


def test_gpus_are_counted_from_0_as_only_the_assigned_ones_are_seen() -> None:
    assert replica_settings(2, ["5", "7"], {})["SERVING_DEVICES"] == "0,1"
    assert "SERVING_DEVICES" not in replica_settings(2, ["5", "7"], {"SERVING_DEVICES": "1"})


class Model:
    """Statistics of a model with two workers."""

    signatures = ("image", "tensor")
    client = SimpleNamespace(memory=SimpleNamespace(serving_workers=[2]))

    def __init__(self) -> None:
        self.totals, self.batches = Totals(), BatchTotals()

    def statistics(self, signature: int) -> tuple[Totals, dict[int, BatchTotals]]:
        """Has all figures under the first signature."""
        return (Totals(), {}) if signature else (self.totals, {1: self.batches})


def test_a_replica_reports_what_happened_since_the_last_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("smallplates.ray.scaling.time.monotonic", lambda: now)
    busy, idle = Model(), Model()
    service: Any = SimpleNamespace(models={})
    load = Load(service)
    assert load.since_last_time() == {"busy": 0.0, "queue_s": 0.0}
    service.models = {"idle": idle, "busy": busy}
    now, busy.batches.infer_ns = 110.0, 10_000_000_000
    busy.totals.successes, busy.totals.queue_ns = 3, 2_000_000_000
    idle.totals.successes = 1
    assert load.since_last_time() == {"busy": 0.5, "queue_s": 0.5}
    now = 111.0
    assert load.since_last_time() == {"busy": 0.0, "queue_s": 0.0}
    service.models = {"busy": Model()}  # another version
    now = 112.0
    assert load.since_last_time() == {"busy": 0.0, "queue_s": 0.0}


@pytest.mark.parametrize(
    ("busy", "queue_s", "wanted"),
    [
        ([BUSY_SHARE, BUSY_SHARE], [0.0, 0.0], 2),
        ([1.0, 1.0], [0.0, 0.0], 2 / BUSY_SHARE),
        ([1.0, 1.0], [2 * QUEUE_S, 4 * QUEUE_S], 6),
        ([0.0, 0.0], [0.0, 0.0], 0),
        ([], [], 3),  # nothing is known yet
    ],
)
def test_the_wanted_replicas(busy: list[float], queue_s: list[float], wanted: float) -> None:
    metrics = {"busy": dict(enumerate(busy)), "queue_s": dict(enumerate(queue_s))}
    context = SimpleNamespace(
        aggregated_metrics=metrics if busy else {}, current_num_replicas=2, target_num_replicas=3
    )
    assert follow_load(context)[0] == pytest.approx(wanted)


@pytest.mark.parametrize("headers", [[], [WATCH_IS_OFF]], ids=["watched", "not watched"])
def test_the_layer_below_serve(headers: list[tuple[bytes, bytes]]) -> None:
    """The path is the one below the prefix, and the id stays Serve's."""
    seen: list[Scope] = []
    sent: list[Message] = []

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        seen.append(scope)
        ids = [(b"x-request-id", b"1"), (b"server-timing", b"total;dur=1")]
        await send({"type": "http.response.start", "status": 200, "headers": ids})

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError

    scope = {"type": "http", "path": "/new/v2", "root_path": "/new", "headers": headers}
    asyncio.run(RayMiddleware(app)(scope, receive, send))
    assert (seen[0]["path"], "disconnect" in seen[0]) == ("/v2", not headers)
    assert sent[0]["headers"] == [(b"server-timing", b"total;dur=1")]


def test_the_file_that_haproxy_gets(tmp_path: Path) -> None:
    config = tmp_path / "haproxy.cfg"
    config.write_text(HAPROXY)
    command = [str(ROOT / "smallplates" / "ray" / "haproxy.sh"), "-db", "-f", str(config), "-sf", "1"]
    ran = subprocess.run(
        command, env={"HAPROXY": "/bin/echo"}, capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"-db -f {config} -sf 1\n"
    lines = [line.strip() for line in config.read_text().splitlines()]
    assert [line for line in lines if line.startswith("bind")] == [
        "bind 127.0.0.1:9101",
        "bind 127.0.0.1:8000",
        "bind 127.0.0.1:8404",
    ]
    page = ROOT / "smallplates" / "ray" / "unavailable.http"
    assert {f"errorfile {status} {page}" for status in (502, 503)} < set(lines)
    assert {
        "option http-buffer-request",
        "timeout http-request 35s",
        "http-request set-header x-request-disconnect-disabled ?1",
    } < set(lines)


def test_the_answer_without_a_replica_is_complete() -> None:
    head, _, body = (
        (ROOT / "smallplates" / "ray" / "unavailable.http").read_bytes().partition(b"\r\n\r\n")
    )
    assert f"content-length: {len(body)}".encode() in head.splitlines()
    assert b"retry-after: 1" in head.splitlines()
