"""How a running server answers under load, in a closed and in an open loop, as the client sees it.

`python -m benchmarks load URL --concurrency 1,4,16` and `... --rate 120 --arrivals poisson`. Windows
are measured until throughput and median latency agree over three of them. Beside the client's view
stands what the server says of itself: the stages in Server-Timing, the batches in /metrics.
"""

import asyncio
import math
import shutil
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from tqdm import tqdm

from benchmarks import payloads, report, wrk
from benchmarks.http_client import post
from benchmarks.loops import Arrivals, ClosedLoop, OpenLoop, windows_of
from benchmarks.payloads import Payload, Protocol
from benchmarks.recorder import merged, ms
from benchmarks.server_side import Scrape, describe

BUSY = 0.85  # of one core: a load generator of one thread has little left


@dataclass(frozen=True)
class Plan:
    """How long is measured."""

    warm_up_s: float = 2.0
    window_s: float = 2.0
    fewest: int = 3
    most: int = 10
    """Windows."""


@dataclass
class Measured:
    """One load, as the client saw it and as the server did; latencies in ms, of answers 200."""

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
    """Cores that the load generator itself used."""

    machine_busy: float
    """Share of all cores that were busy, load generator included."""

    offered_per_second: float | None = None
    late_p99: float | None = None
    """How late the load generator itself sent, ms."""

    server_ms: dict[str, float] | None = None
    """Medians of the stages in Server-Timing (means from /metrics where wrk was the motor)."""

    mean_batch: float | None = None
    batch_sizes: dict[str, int] = field(default_factory=dict)
    share_of_limit: float | None = None
    distribution: list[tuple[float, float]] = field(default_factory=list)
    """(percentile, ms)."""

    @property
    def outside_ms(self) -> float | None:
        """Of the median, what the server does not account for: sockets, waiting to be read."""
        return round(max(0.0, self.p50 - self.server_ms["total"]), 3) if self.server_ms else None

    def warnings(self) -> list[str]:
        """Reasons to distrust these figures."""
        found = []
        if not self.statuses:
            found.append(f"{self.load}: no answer came while it was measured")
        failed = {status: count for status, count in self.statuses.items() if status != "200"}
        if failed:
            found.append(f"{self.load}: other answers than 200: {failed}")
        if self.stable is False:
            found.append(f"{self.load}: not stable, the last windows differ by more than 10 %")
        if self.motor == "python" and self.generator_cores > BUSY:
            found.append(
                f"{self.load}: the load generator was the limit "
                f"({self.generator_cores:.2f} cores); use --motor wrk, or several of it"
            )
        if self.late_p99 is not None and self.late_p99 > max(5.0, self.p50):
            found.append(f"{self.load}: requests were sent late, by {self.late_p99:.0f} ms at p99")
        return found

    def seen_by_client(self) -> dict[str, object]:
        """One line of a table."""
        return {
            "load": self.load,
            "1/s": self.per_second,
            **{name: getattr(self, name) for name in ("p50", "p90", "p95", "p99", "longest")},
            "of limit": self.share_of_limit,
            "failed": sum(self.statuses.values()) - self.statuses.get("200", 0),
            "stable": self.stable,
        }

    def seen_by_server(self) -> dict[str, object]:
        """One line of another."""
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


class Usage:
    """Processor time of this process and of the machine, from construction on."""

    def __init__(self) -> None:
        self._wall, self._own = time.perf_counter(), time.process_time()
        psutil.cpu_percent()

    def look(self) -> tuple[float, float]:
        """(cores used by this process, share of all cores that was busy)."""
        wall = time.perf_counter() - self._wall
        own = time.process_time() - self._own
        return round(own / wall, 3), round(psutil.cpu_percent() / 100, 3)


def with_python(name: str, loop_: ClosedLoop | OpenLoop, plan: Plan) -> Measured:
    """Drives the loop in this process."""
    usage = Usage()
    parts, steady = asyncio.run(windows_of(loop_, plan.warm_up_s, plan.window_s, plan.fewest, plan.most))
    generator, machine = usage.look()
    used = parts[-plan.fewest :] if steady else parts
    whole = merged(used)
    return Measured(
        load=name,
        motor="python",
        seconds=round(whole.seconds, 2),
        per_second=round(whole.per_second, 2),
        p50=ms(whole.latency, 50),
        p90=ms(whole.latency, 90),
        p95=ms(whole.latency, 95),
        p99=ms(whole.latency, 99),
        longest=whole.latency.get_max_value() / 1000,
        statuses=dict(sum((part.statuses for part in parts), Counter())),
        stable=steady if plan.most > 1 else None,
        generator_cores=generator,
        machine_busy=machine,
        offered_per_second=loop_.rate if isinstance(loop_, OpenLoop) else None,
        late_p99=ms(whole.late, 99) if isinstance(loop_, OpenLoop) else None,
        server_ms=whole.server_ms(),
        distribution=whole.distribution(),
    )


def with_wrk(name: str, url: str, requests: list[Payload], connections: int, plan: Plan) -> Measured:
    """Drives wrk; one window."""
    target, headers = url + requests[0].path, requests[0].headers
    bodies = [request.body for request in requests]
    wrk.run(target, bodies, connections, plan.warm_up_s, headers)
    usage = Usage()
    seen = wrk.run(target, bodies, connections, plan.window_s * plan.fewest, headers)
    own, busy = usage.look()
    answered = seen.requests - seen.failed
    return Measured(
        load=name,
        motor="wrk",
        seconds=round(seen.seconds, 2),
        per_second=round(answered / seen.seconds, 2),
        p50=seen.p50_ms,
        p90=seen.p90_ms,
        p95=seen.p95_ms,
        p99=seen.p99_ms,
        longest=seen.max_ms,
        statuses={"200": answered, **({"other": seen.failed} if seen.failed else {})},
        stable=None,
        generator_cores=own,
        machine_busy=busy,
    )


@dataclass
class Target:
    """A server, the photos it is sent, and how."""

    url: str
    photos: list[bytes]
    protocol: Protocol = Protocol.JSON
    key: str | None = None
    motor: str = "python"

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        if self.motor == "wrk" and shutil.which("wrk") is None:
            raise ValueError("wrk is not installed")

    def payloads(self) -> list[Payload]:
        """What is posted, with the key."""
        made = [payloads.payload(photo, self.protocol) for photo in self.photos]
        extra = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return [Payload(p.path, {**p.headers, **extra}, p.body) for p in made]

    def wire(self) -> list[bytes]:
        """The requests' bytes."""
        return [post(self.url, p.path, p.headers, p.body) for p in self.payloads()]

    def closed(self, concurrency: int, plan: Plan) -> Measured:
        """So many clients, each of which waits for its answer."""
        name = f"{concurrency} connection{'s' if concurrency > 1 else ''}"
        before = Scrape.of(self.url)
        if self.motor == "wrk":
            measured = with_wrk(name, self.url, self.payloads(), concurrency, plan)
        else:
            loop_ = ClosedLoop(self.url, self.wire(), concurrency)
            measured = with_python(name, loop_, plan)
        return self._with_server(measured, before)

    def open(self, rate: float, arrivals: Arrivals, plan: Plan) -> Measured:
        """So many requests a second, whether or not answers come. Raises ValueError with wrk."""
        if self.motor == "wrk":
            raise ValueError("wrk has no open loop")
        before = Scrape.of(self.url)
        loop_ = OpenLoop(self.url, self.wire(), rate, arrivals)
        return self._with_server(with_python(f"{rate:g}/s {arrivals}", loop_, plan), before)

    def _with_server(self, measured: Measured, before: Scrape | None) -> Measured:
        after = Scrape.of(self.url)
        if before is None or after is None:
            return measured
        seen = after.since(before)
        measured.mean_batch = seen.mean_batch()
        measured.batch_sizes = seen.batch_sizes()
        means = seen.mean_ms()
        if measured.server_ms is None and "total" in means:
            rest = means["total"] - sum(value for name, value in means.items() if name != "total")
            measured.server_ms = {**means, "rest": round(max(0.0, rest), 3)}
        return measured


def draw(measured: list[Measured], path: Path) -> None:
    """Latency by percentile, the tail stretched; and throughput by load where there are several."""
    closed = [m for m in measured if m.offered_per_second is None]
    figure, axes = report.new_figure(2 if len(closed) > 1 else 1)
    for one in measured:
        points = [(p, value) for p, value in one.distribution if p < 100]
        axes[0].plot([1 / (1 - p / 100) for p, _ in points], [v for _, v in points], label=one.load)
    ticks = [50, 90, 99, 99.9, 99.99]
    axes[0].set_xscale("log")
    axes[0].set_xticks([1 / (1 - p / 100) for p in ticks], [f"{p:g} %" for p in ticks])
    axes[0].minorticks_off()
    axes[0].set(xlabel="share of the requests", ylabel="answered within, ms", ylim=(0, None))
    axes[0].legend()
    if len(closed) > 1:
        axes[1].plot([m.load.split()[0] for m in closed], [m.per_second for m in closed], "o-")
        axes[1].set(xlabel="connections", ylabel="answers a second", ylim=(0, None))
    for plot in axes:
        plot.grid(alpha=0.3)
    report.save_figure(figure, path)


def numbers(text: str) -> list[int]:
    """`1,4,16` -> three numbers. Raises typer.BadParameter."""
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise typer.BadParameter(f"{text!r} is not a list of whole numbers from 1 on")
    return found


def limit_per_second(path: Path | None) -> float | None:
    """The best rate of whole pictures, without HTTP, in a file of `python -m benchmarks limit`."""
    if path is None:
        return None
    rows: list[dict[str, Any]] = report.read_json(path)["results"]["whole"]
    return max(float(row["per_second"]) for row in rows)


def main(
    url: Annotated[str, typer.Argument(help="The server's base address, http://host:port.")],
    photo: Annotated[Path, typer.Option(help="A picture, or a folder of them.")] = payloads.SAMPLE,
    protocol: Annotated[Protocol, typer.Option(help="What is sent.")] = Protocol.JSON,
    concurrency: Annotated[str, typer.Option(help="Closed loop: connections.")] = "1,4,16",
    rate: Annotated[float | None, typer.Option(help="Open loop instead: requests a second.")] = None,
    arrivals: Annotated[Arrivals, typer.Option(help="Of the open loop.")] = Arrivals.POISSON,
    warm_up: Annotated[float, typer.Option(help="Seconds, not measured.")] = 2.0,
    window: Annotated[float, typer.Option(help="Seconds.")] = 2.0,
    windows: Annotated[int, typer.Option(min=1, help="Most windows.")] = 10,
    motor: Annotated[str, typer.Option(help="python, or wrk: closed loop only.")] = "python",
    key: Annotated[str | None, typer.Option(envvar="SERVING_API_KEY", help="The API key.")] = None,
    limit: Annotated[Path | None, typer.Option(help="A file of `benchmarks limit --json`.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="All figures.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="The table.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PLOT.png and PLOT.svg.")] = None,
) -> None:
    """Measures latency and throughput of a running server."""
    try:
        target = Target(url, payloads.photos(photo), protocol, key, motor)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    plan = Plan(warm_up, window, min(3, windows), windows)
    if rate is not None:
        if not (math.isfinite(rate) and rate > 0):
            raise typer.BadParameter("--rate must be a positive number")
        measured = [target.open(rate, arrivals, plan)]
    else:
        loads = numbers(concurrency)
        measured = [target.closed(count, plan) for count in tqdm(loads, desc="loads", mininterval=1)]
    best = limit_per_second(limit)
    for one in measured:
        one.share_of_limit = round(one.per_second / best, 3) if best else None
    rows = [one.seen_by_client() for one in measured]
    report.print_table(f"{protocol} to {target.url}, as the client sees it; latencies in ms", rows)
    report.print_table(
        "where the median's milliseconds go, as the server says; outside: before and after it",
        [one.seen_by_server() for one in measured],
        [warning for one in measured for warning in one.warnings()],
    )
    if json_file:
        results = [asdict(one) for one in measured]
        report.write_json(json_file, report.document(results, model=describe(target.url)))
    if csv_file:
        report.write_csv(
            csv_file, [{**one.seen_by_client(), **one.seen_by_server()} for one in measured]
        )
    if plot:
        draw(measured, plot)
