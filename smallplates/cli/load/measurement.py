"""Figures of one load, from the client and from the server; built by `target.py`."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BUSY = 0.85  # of one core: a load generator of one thread has little left


@dataclass
class Measurement:
    """Figures of one load; latencies are in ms and of answers 200."""

    load: str
    motor: str
    seconds: float
    per_second: float
    """Answers 200 a second."""

    p50: float
    p90: float
    p95: float
    p99: float
    longest: float
    statuses: dict[str, int]
    stable: bool | None
    """Whether the last three windows agreed within a tenth; None for one window."""

    generator_cores: float
    """Cores that the load generator used."""

    machine_busy: float
    """Share of all cores that was busy, load generator included."""

    offered_per_second: float | None = None
    late_p99: float | None = None
    """Delay with which the load generator itself sent, ms."""

    server_ms: dict[str, float] | None = None
    """Medians of the stages in Server-Timing (with wrk: means from /metrics)."""

    server_mean_ms: dict[str, float] = field(default_factory=dict)
    """Means of the stages, from /metrics."""

    mean_batch: float | None = None
    batch_sizes: dict[str, int] = field(default_factory=dict)
    share_of_limit: float | None = None
    distribution: list[tuple[float, float]] = field(default_factory=list)
    """Pairs (percentile, ms)."""

    @property
    def outside_ms(self) -> float | None:
        """Part of the median that the server does not report: sockets, waiting to be read."""
        return round(max(0.0, self.p50 - self.server_ms["total"]), 3) if self.server_ms else None

    def warnings(self) -> list[str]:
        """Returns reasons to distrust these figures."""
        texts = []
        if not self.statuses:
            texts.append(f"{self.load}: no answers arrived during the measurement")
        failures = {status: count for status, count in self.statuses.items() if status != "200"}
        if failures:
            texts.append(f"{self.load}: answers other than 200: {failures}")
        if self.stable is False:
            texts.append(f"{self.load}: not stable: the last windows differ by more than 10 %")
        if self.motor == "python" and self.generator_cores > BUSY:
            texts.append(
                f"{self.load}: the load generator was the limit "
                f"({self.generator_cores:.2f} cores); use --motor wrk, or run several generators"
            )
        if self.late_p99 is not None and self.late_p99 > max(5.0, self.p50):
            texts.append(f"{self.load}: requests were sent late, by {self.late_p99:.0f} ms at p99")
        return texts

    def seen_by_client(self) -> dict[str, object]:
        """Returns a row of the clients' table."""
        return {
            "load": self.load,
            "1/s": self.per_second,
            **{name: getattr(self, name) for name in ("p50", "p90", "p95", "p99", "longest")},
            "of limit": self.share_of_limit,
            "failed": sum(self.statuses.values()) - self.statuses.get("200", 0),
            "stable": self.stable,
        }

    def seen_by_server(self) -> dict[str, object]:
        """Returns a row of the server's table."""
        server = self.server_ms or {}
        return {
            "load": self.load,
            **{name: server.get(name) for name in ("decode", "queue", "infer", "rest")},
            "outside": self.outside_ms,
            "batch": self.mean_batch,
            "batches by size": " ".join(f"{size}:{n}" for size, n in self.batch_sizes.items()),
            "generator, cores": self.generator_cores,
            "machine busy": self.machine_busy,
        }


def plot_latencies(axes: "Axes", measured: list[Measurement]) -> None:
    """Plots latency by percentile, with the tail stretched."""
    for result in measured:
        points = [(p, value) for p, value in result.distribution if p < 100]
        axes.plot([1 / (1 - p / 100) for p, _ in points], [v for _, v in points], label=result.load)
    ticks = [50, 90, 99, 99.9, 99.99]
    axes.set_xscale("log")
    axes.set_xticks([1 / (1 - p / 100) for p in ticks], [f"{p:g} %" for p in ticks])
    axes.minorticks_off()
    axes.set(xlabel="share of the requests", ylabel="answered within, ms", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)


def plot_throughput(axes: "Axes", measured: list[Measurement]) -> None:
    """Plots answers a second of each load."""
    axes.plot([m.load.split()[0] for m in measured], [m.per_second for m in measured], "o-")
    axes.set(xlabel="connections", ylabel="answers a second", ylim=(0, None))
    axes.grid(alpha=0.3)
