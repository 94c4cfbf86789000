"""Recorder of one window's answers: statuses, latencies, and the stages that the server reports."""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

from hdrh.histogram import HdrHistogram

from smallplates.cli.load.http_client import Answer

LONGEST_US = 600_000_000
DIGITS = 3  # a value is kept within a thousandth of itself
STAGES = ("decode", "queue", "infer", "total")


def histogram() -> HdrHistogram:
    """Returns a histogram of microseconds, up to ten minutes."""
    return HdrHistogram(1, LONGEST_US, DIGITS)


def put(into: HdrHistogram, seconds: float) -> None:
    """Records a duration; longer ones count as ten minutes."""
    into.record_value(min(max(int(seconds * 1e6), 1), LONGEST_US))


def ms(of: HdrHistogram, percentile: float) -> float:
    """Returns a percentile in milliseconds; 0 when nothing was recorded."""
    value: int = of.get_value_at_percentile(percentile)
    return value / 1000


@dataclass
class Recorder:
    """Latencies of the answers 200, and the number of answers by status."""

    latency: HdrHistogram = field(default_factory=histogram)
    late: HdrHistogram = field(default_factory=histogram)
    """Delay of each request after its due time, caused by the load generator itself."""

    without_retry_after: int = 0
    """Number of answers 503 without Retry-After."""

    stages: dict[str, HdrHistogram] = field(default_factory=lambda: {s: histogram() for s in STAGES})
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, answer: Answer, seconds: float) -> None:
        """Records an answer; `seconds` count from sending or, in an open loop, from the due time."""
        self.statuses[answer.status] += 1
        if answer.status == "503":
            self.without_retry_after += answer.field(b"retry-after") is None
        if answer.status != "200":
            return
        put(self.latency, seconds)
        timing = answer.field(b"server-timing")
        for stage in timing.split(b",") if timing else ():
            name, _, value = stage.strip().partition(b";dur=")
            if (stage_times := self.stages.get(name.decode("latin-1"))) is not None:
                put(stage_times, float(value) / 1000)

    @property
    def per_second(self) -> float:
        """Answers 200 a second."""
        return self.statuses["200"] / self.seconds if self.seconds else 0.0

    def server_ms(self) -> dict[str, float] | None:
        """Returns medians of the server's stages, and `rest`: the total without the named stages."""
        if not self.stages["total"].get_total_count():
            return None
        return add_rest({name: round(ms(stage, 50), 3) for name, stage in self.stages.items()})

    def distribution(self) -> list[tuple[float, float]]:
        """Returns pairs (percentile, ms), denser towards 100: enough to plot the tail."""
        count = self.latency.get_total_count()
        if not count:
            return []
        steps = itertools.chain(range(0, 90, 2), (90 + 9 * i / 20 for i in range(20)))
        tail = (
            100 - 10 ** (-i / 8) for i in range(math.ceil(8 * math.log10(max(count, 100) / 100)) + 1)
        )
        return [(p, ms(self.latency, p)) for p in (*steps, *tail)]


def add_rest(stages_ms: dict[str, float]) -> dict[str, float]:
    """Returns the stages and `rest`, the part of `total` that none of the others has."""
    rest = 2 * stages_ms["total"] - sum(stages_ms.values())
    return {**stages_ms, "rest": round(max(0.0, rest), 3)}


def merge(parts: list[Recorder]) -> Recorder:
    """Returns one recorder with the contents of all."""
    whole = Recorder()
    for part in parts:
        whole.latency.add(part.latency)
        whole.late.add(part.late)
        whole.without_retry_after += part.without_retry_after
        for name, stage in part.stages.items():
            whole.stages[name].add(stage)
        whole.statuses += part.statuses
        whole.seconds += part.seconds
    return whole


def are_stable(windows: list[Recorder]) -> bool:
    """Returns whether throughput and median latency of the last three windows differ by 10 % at most."""
    if len(windows) < 3:
        return False
    rates = [window.per_second for window in windows[-3:]]
    medians = [ms(window.latency, 50) for window in windows[-3:]]
    return all(0 < max(values) <= 1.1 * min(values) for values in (rates, medians))
