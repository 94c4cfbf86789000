"""Open loop with h2load, a program in C++, which leaves the cores to the server; for `overload.py`.

Each connection sends at a constant interval, unless its last answer is missing. Connections start one
after the other, so that requests are evenly spaced.
"""

import resource
import statistics
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from smallplates.cli.load.payloads import Payload

MAX_CONNECTIONS = 3000
INTERVAL_S = 2.0  # of one connection; longer than any answer takes that a queue of seconds delays
STEP_MS = 10  # between those that begin together


@dataclass(frozen=True)
class Flood:
    """Answers that came after all connections were open."""

    answers: Counter[str]
    """Number by status; `failed` counts connections that were refused or lost."""

    refused_p50_ms: float
    answered_p50_ms: float
    generator_cores: float


@dataclass(frozen=True)
class Schedule:
    """Plan of connections and intervals for about `rate` requests a second."""

    rate: float
    step_ms: int
    at_once: int
    connections: int

    @classmethod
    def of(cls, rate: float) -> "Schedule":
        """Returns the schedule closest to `rate`; h2load takes whole numbers only."""
        step_ms = max(STEP_MS, round(1000 / rate))
        at_once = max(1, round(rate * step_ms / 1000))
        rate = at_once * 1000 / step_ms
        connections = max(1, min(round(rate * INTERVAL_S), MAX_CONNECTIONS))
        return cls(rate, step_ms, at_once, connections)

    @property
    def ramp_s(self) -> float:
        """Seconds until all connections are open."""
        return self.connections / self.rate


def run(url: str, payload: Payload, plan: Schedule, seconds: float) -> Flood:
    """Posts for `seconds` after all connections are open. Raises RuntimeError when h2load fails."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # which h2load inherits
    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder, "body"), Path(folder, "log")
        body.write_bytes(payload.body)
        command = ["h2load", "--h1", f"--data={body}", f"--log-file={log}"]
        command += [f"--clients={plan.connections}", f"--rps={plan.rate / plan.connections}"]
        command += [f"--rate={plan.at_once}", f"--rate-period={plan.step_ms}ms"]
        command += [f"--requests={round(plan.rate * (plan.ramp_s + seconds))}"]
        command += [f"--header={name}: {value}" for name, value in payload.headers.items()]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(  # noqa: S603 h2load, with our own arguments
            [*command, url + payload.path], capture_output=True, text=True, check=False
        )
        if done.returncode or not log.exists():
            raise RuntimeError(f"h2load: {(done.stdout + done.stderr)[-500:]}")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = [[int(field) for field in line.split("\t")[:3]] for line in log.read_text().splitlines()]
    first = min(start for start, _, _ in rows)
    began = first + plan.ramp_s * 1e6
    whole_s = (max(start + us for start, _, us in rows) - first) / 1e6
    seen: dict[int, list[int]] = {}
    for start, status, us in rows:
        if began <= start + us < began + seconds * 1e6:
            seen.setdefault(status, []).append(us)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return Flood(
        answers=Counter(
            {str(s) if s > 0 else "failed": len(durations) for s, durations in seen.items()}
        ),
        refused_p50_ms=median_ms(seen.get(503, [])),
        answered_p50_ms=median_ms(seen.get(200, [])),
        generator_cores=cpu_s / whole_s,
    )


def median_ms(us: list[int]) -> float:
    """Converts the median of microseconds to ms; 0 for an empty list."""
    return statistics.median(us) / 1000 if us else 0.0
