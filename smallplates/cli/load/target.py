"""Server under load: its requests, the loop and the load generator, and the measurement."""

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import psutil

from smallplates.cli.load import payloads, wrk
from smallplates.cli.load.http_client import Connections, address, post
from smallplates.cli.load.loops import Arrivals, ClosedLoop, OpenLoop, one_window, windows_of
from smallplates.cli.load.measurement import Measured
from smallplates.cli.load.other_wires import GrpcClient, TcpClient, WireClient, call, frame
from smallplates.cli.load.payloads import NOT_HTTP, PHOTOS, TEXTS, Payload, Protocol, Served
from smallplates.cli.load.recorder import Recorder, merged, ms
from smallplates.cli.load.server_side import Scrape, served

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """Lengths of the warm-up and of the windows, in seconds, and the number of windows."""

    warm_up_s: float = 2.0
    window_s: float = 2.0
    fewest: int = 3
    most: int = 10
    """Largest number of windows."""


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine like asyncio.run, also beside a running loop, as in a notebook."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


class Usage:
    """Processor time of this process and of the machine, since the object was made."""

    def __init__(self) -> None:
        self._wall, self._own = time.perf_counter(), time.process_time()
        psutil.cpu_percent()

    def look(self) -> tuple[float, float]:
        """Returns the cores that this process used, and the share of all cores that was busy."""
        wall = time.perf_counter() - self._wall
        cpu_s = time.process_time() - self._own
        return round(cpu_s / wall, 3), round(psutil.cpu_percent() / 100, 3)


def run_fixed(name: str, loop_: ClosedLoop) -> Measured:
    """Runs a loop with a fixed number of requests; one window."""
    usage = Usage()
    seen = run_loop(one_window(loop_))
    return python_measured(name, usage, [seen], seen, None)


def run_in_windows(name: str, loop_: ClosedLoop | OpenLoop, plan: Plan) -> Measured:
    """Runs a loop until it is steady.

    The figures are those of the last windows, or of all windows when it never became steady.
    """
    usage = Usage()
    parts, steady = run_loop(windows_of(loop_, plan.warm_up_s, plan.window_s, plan.fewest, plan.most))
    whole = merged(parts[-plan.fewest :] if steady else parts)
    measured = python_measured(name, usage, parts, whole, steady if plan.most > 1 else None)
    if isinstance(loop_, OpenLoop):
        measured.offered_per_second = loop_.rate
        measured.late_p99 = ms(whole.late, 99)
    return measured


def python_measured(
    name: str, usage: "Usage", parts: list[Recorder], whole: Recorder, steady: bool | None
) -> Measured:
    """Returns the figures of `whole`, with the statuses of all windows in `parts`."""
    generator, machine = usage.look()
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
        stable=steady,
        generator_cores=generator,
        machine_busy=machine,
        server_ms=whole.server_ms(),
        distribution=whole.distribution(),
    )


def run_wrk(name: str, url: str, requests: list[Payload], connections: int, plan: Plan) -> Measured:
    """Runs wrk; one window."""
    target, headers = url + requests[0].path, requests[0].headers
    bodies = [request.body for request in requests]
    wrk.run(target, bodies, connections, plan.warm_up_s, headers)
    usage = Usage()
    seen = wrk.run(target, bodies, connections, plan.window_s * plan.fewest, headers)
    generator, busy = usage.look()
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
        generator_cores=generator,
        machine_busy=busy,
    )


@dataclass
class Target:
    """Server, with the images to send and the way to send them."""

    url: str
    photos: list[bytes]
    """Images or texts; if empty, the example of the server's model, or an image if it takes one."""

    protocol: Protocol = Protocol.JSON
    key: str | None = None
    motor: str = "python"
    port: int | None = None
    """Port of gRPC or TCP; the URL is that of HTTP, where the server's own figures are read."""

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        address(self.url)
        if (self.protocol in NOT_HTTP) != (self.port is not None):
            raise ValueError("--port is required for grpc and tcp, and not allowed for other protocols")
        if self.motor not in ("python", "wrk"):
            raise ValueError(f"--motor must be python or wrk, not {self.motor}")
        if self.motor == "wrk" and self.protocol in NOT_HTTP:
            raise ValueError("wrk supports HTTP only")
        if self.motor == "wrk" and shutil.which("wrk") is None:
            raise ValueError("wrk is not installed")

    @cached_property
    def served(self) -> Served:
        """The server's model. Raises OSError."""
        return served(self.url) or (TEXTS if self.protocol is Protocol.TEXT else PHOTOS)

    @property
    def items(self) -> list[bytes] | list[None]:
        """Images or texts to send; None stands for the model's example. Raises ValueError."""
        if self.photos and self.served.item is None:
            raise ValueError(f"the model {self.served.name} takes neither photos nor texts")
        if self.photos or self.served.item is None:
            return self.photos or [None]
        return payloads.photos(payloads.SAMPLE) if self.served.is_photo else [self.served.item.encode()]

    def payloads(self) -> list[Payload]:
        """Returns the HTTP requests, with the API key. Raises OSError and ValueError."""
        made = [payloads.payload(item, self.protocol, self.served) for item in self.items]
        extra = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return [Payload(p.path, {**p.headers, **extra}, p.body) for p in made]

    def connections(self) -> WireClient:
        """Returns a client of the server, not connected yet."""
        if self.port is None:
            return Connections(self.url)
        host, _ = address(self.url)
        if self.protocol is Protocol.GRPC:
            return GrpcClient(host, self.port, self.key)
        return TcpClient(host, self.port)

    def wire(self) -> list[bytes]:
        """Returns the requests as bytes. Raises OSError and ValueError."""
        if self.protocol is Protocol.GRPC:
            return [call(item, self.served) for item in self.items]
        if self.protocol is Protocol.TCP:
            return [frame(item, self.key, self.served) for item in self.items]
        return [post(self.url, p.path, p.headers, p.body) for p in self.payloads()]

    def exactly(self, total: int, senders: int) -> Measured:
        """Measures exactly `total` requests, by `senders` clients that wait for their answers."""
        before = Scrape.of(self.url)
        loop_ = ClosedLoop(self.connections(), self.wire(), senders, total)
        name = f"{total} requests, {senders} at a time"
        return self._with_server(run_fixed(name, loop_), before)

    def closed(self, concurrency: int, plan: Plan) -> Measured:
        """Measures `concurrency` clients that wait for their answers."""
        name = f"{concurrency} connection{'s' if concurrency > 1 else ''}"
        before = Scrape.of(self.url)
        if self.motor == "wrk":
            measured = run_wrk(name, self.url, self.payloads(), concurrency, plan)
        else:
            loop_ = ClosedLoop(self.connections(), self.wire(), concurrency)
            measured = run_in_windows(name, loop_, plan)
        return self._with_server(measured, before)

    def open(self, rate: float, arrivals: Arrivals, plan: Plan) -> Measured:
        """Measures `rate` requests a second, whether or not answers come. Raises ValueError with wrk."""
        if self.motor == "wrk":
            raise ValueError("wrk does not support --rate")
        before = Scrape.of(self.url)
        loop_ = OpenLoop(self.connections(), self.wire(), rate, arrivals)
        return self._with_server(run_in_windows(f"{rate:g}/s {arrivals}", loop_, plan), before)

    def _with_server(self, measured: Measured, before: Scrape | None) -> Measured:
        after = Scrape.of(self.url)
        if before is None or after is None:
            return measured
        seen = after.since(before)
        measured.mean_batch = seen.mean_batch()
        measured.batch_sizes = seen.batch_sizes()
        measured.server_mean_ms = means = seen.mean_ms()
        if measured.server_ms is None and "total" in means:
            rest = means["total"] - sum(value for name, value in means.items() if name != "total")
            measured.server_ms = {**means, "rest": round(max(0.0, rest), 3)}
        return measured
