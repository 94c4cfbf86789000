"""Load from wrk in a closed loop: being C, it takes little CPU from the server."""

import json
import math
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from smallplates.errors import ConfigurationError

JSON = {"Content-Type": "application/json"}
SCRIPT = Path(__file__).with_name("post.lua")


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

    `seconds` are rounded up: wrk takes whole ones, at least 1. Raises ConfigurationError if wrk fails.
    """
    bodies = [body] if isinstance(body, bytes) else body
    command = ["wrk", "-t1", f"-c{connections}", f"-d{math.ceil(seconds)}s", "--timeout", "20s"]
    command += [f"-H{name}: {value}" for name, value in headers.items()]
    with tempfile.TemporaryDirectory() as folder:
        for index, content in enumerate(bodies, 1):
            Path(folder, str(index)).write_bytes(content)
        command += ["-s", str(SCRIPT), url, "--", folder, str(len(bodies))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 wrk, with our own arguments
    lines = (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
    if done.returncode or not done.stdout.rstrip().endswith("}"):
        raise ConfigurationError(f"wrk failed: {lines[-1]}")
    return Load(**json.loads(done.stdout.strip().splitlines()[-1]))
