"""Closed loop with wrk, which leaves the cores to the server as it is written in C."""

import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from smallplates.errors import ConfigurationError

JSON = {"Content-Type": "application/json"}
SCRIPT = """
local bodies, requests, last = {}, {}, 0
for index = 1, %d do
  local file = io.open("%s" .. index, "rb")
  bodies[index] = file:read("*a")
  file:close()
end
wrk.method, wrk.body = "POST", bodies[1]
%s
if #bodies > 1 then
  function init()
    for index, body in ipairs(bodies) do
      requests[index] = wrk.format(nil, nil, nil, body)
    end
  end
  function request()
    last = last %% #requests + 1
    return requests[last]
  end
end
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\n{"requests": %%d, "seconds": %%f, "failed": %%d, ' ..
    '"p50_ms": %%f, "p90_ms": %%f, "p95_ms": %%f, "p99_ms": %%f, "max_ms": %%f}\\n',
    summary.requests, summary.duration / 1e6,
    e.status + e.connect + e.read + e.write + e.timeout,
    latency:percentile(50) / 1e3, latency:percentile(90) / 1e3, latency:percentile(95) / 1e3,
    latency:percentile(99) / 1e3, latency.max / 1e3))
end
"""


@dataclass(frozen=True)
class Load:
    """Figures that wrk reports."""

    requests: int
    seconds: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    failed: int

    @property
    def per_second(self) -> float:
        """Answers of every status a second; meaningful only when `failed` is 0."""
        return self.requests / self.seconds


def run(
    url: str,
    body: bytes | list[bytes],
    connections: int,
    seconds: float,
    headers: Mapping[str, str] = JSON,
) -> Load:
    """Posts the bodies in turn over `connections` connections, in a closed loop.

    Raises ConfigurationError if wrk fails.
    """
    bodies = [body] if isinstance(body, bytes) else body
    fields = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items())
    with tempfile.TemporaryDirectory() as folder:
        for index, content in enumerate(bodies, 1):
            Path(folder, f"body{index}").write_bytes(content)
        script = Path(folder, "post.lua")
        script.write_text(SCRIPT % (len(bodies), Path(folder, "body"), fields))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "20s"]
        done = subprocess.run(  # noqa: S603 wrk, with our own arguments
            [*command, "-s", str(script), url], capture_output=True, text=True, check=False
        )
    lines = (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
    if done.returncode or not done.stdout.rstrip().endswith("}"):
        raise ConfigurationError(f"wrk failed: {lines[-1]}")
    return Load(**json.loads(done.stdout.strip().splitlines()[-1]))
