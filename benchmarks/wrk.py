"""wrk as the load generator: a program in C, so that the cores are the server's."""

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SCRIPT = """
local file = io.open("%s", "rb")
wrk.method, wrk.body = "POST", file:read("*a")
wrk.headers["Content-Type"] = "application/json"
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\n{"requests": %%d, "seconds": %%f, "failed": %%d, ' ..
    '"p50_ms": %%f, "p95_ms": %%f, "p99_ms": %%f}\\n',
    summary.requests, summary.duration / 1e6,
    e.status + e.connect + e.read + e.write + e.timeout,
    latency:percentile(50) / 1e3, latency:percentile(95) / 1e3, latency:percentile(99) / 1e3))
end
"""


@dataclass(frozen=True)
class Load:
    """What wrk saw."""

    requests: int
    seconds: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    failed: int

    @property
    def per_second(self) -> float:
        """Answers of every kind; `failed` must be 0 for it to mean anything."""
        return self.requests / self.seconds


def run(url: str, body: bytes, connections: int, seconds: float) -> Load:
    """A closed loop of `connections` connections that all POST the same JSON."""
    with tempfile.TemporaryDirectory() as folder:
        body_path, script = Path(folder, "body"), Path(folder, "post.lua")
        body_path.write_bytes(body)
        script.write_text(SCRIPT % body_path)
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "20s"]
        output = subprocess.run(  # noqa: S603 wrk, with our own arguments
            [*command, "-s", str(script), url], capture_output=True, text=True, check=True
        ).stdout
    return Load(**json.loads(output.strip().splitlines()[-1]))
