"""Server under load: its requests, the loop and the load generator, and the measurement."""

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import psutil

from smallplates.cli.load import payloads, wrk
from smallplates.cli.load.http_client import Connections, address, post
from smallplates.cli.load.loops import Arrivals, ClosedLoop, OpenLoop, Plan, run_windows
from smallplates.cli.load.measurement import Measurement
from smallplates.cli.load.other_wires import GrpcClient, TcpClient, WireClient, call, frame
from smallplates.cli.load.payloads import NOT_HTTP, PHOTOS, TEXTS, Payload, Protocol, Requests
from smallplates.cli.load.recorder import add_rest, merge, ms
from smallplates.cli.load.server_side import Scrape, requests_of

T = TypeVar("T")


def named(connections: int) -> str:
    """Returns how a closed loop is called; the number comes first."""
    return f"{connections} connection{'s' if connections > 1 else ''}"


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine like asyncio.run, also beside a running loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)  # which Ctrl-C ends at once
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def with_usage(work: Callable[[], T]) -> tuple[T, float, float]:
    """Returns the result, the cores that this process used, and the busy share of all cores."""
    wall, own = time.perf_counter(), time.process_time()
    psutil.cpu_percent()
    result = work()
    cores = (time.process_time() - own) / (time.perf_counter() - wall)
    return result, round(cores, 3), round(psutil.cpu_percent() / 100, 3)


def run_python(name: str, loop_: ClosedLoop | OpenLoop, plan: Plan) -> Measurement:
    """Runs a loop until it is steady.

    The figures are those of the last windows, or of all windows when it never became steady.
    """
    (parts, steady), generator, machine = with_usage(partial(run_loop, run_windows(loop_, plan)))
    whole = merge(parts[-plan.fewest :] if steady else parts)
    rate = loop_.rate if isinstance(loop_, OpenLoop) else None
    return Measurement(
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
        offered_per_second=rate,
        late_p99=ms(whole.late, 99) if rate else None,
        server_ms=whole.server_ms(),
        distribution=whole.distribution(),
    )


def run_wrk(name: str, url: str, requests: list[Payload], connections: int, plan: Plan) -> Measurement:
    """Runs wrk; one window."""
    target, headers = url + requests[0].path, requests[0].headers
    bodies = [request.body for request in requests]
    if plan.warm_up_s:
        wrk.run(target, bodies, connections, plan.warm_up_s, headers)
    seconds = (plan.window_s or 0) * plan.fewest
    run = partial(wrk.run, target, bodies, connections, seconds, headers)
    load, generator, machine = with_usage(run)
    answers = load.requests - load.failed
    return Measurement(
        load=name,
        motor="wrk",
        seconds=round(load.seconds, 2),
        per_second=round(answers / load.seconds, 2),
        p50=load.p50_ms,
        p90=load.p90_ms,
        p95=load.p95_ms,
        p99=load.p99_ms,
        longest=load.max_ms,
        statuses={"200": answers, **({"other": load.failed} if load.failed else {})},
        stable=None,
        generator_cores=generator,
        machine_busy=machine,
    )


@dataclass
class Target:
    """Server, with the images to send and the way to send them."""

    url: str
    photos: list[bytes]
    """Photos or texts; if empty, the example of the model, or a photo if it takes one."""

    protocol: Protocol = Protocol.JSON
    key: str | None = None
    motor: str = "python"
    port: int | None = None
    """Port of gRPC or TCP; the URL is that of HTTP, where the server's own figures are read."""

    model: str | None = None
    """Name of the model; None: the default model."""

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
    def requests(self) -> Requests:
        """Builds the requests. Raises OSError, and ConfigurationError for an unknown model."""
        default = TEXTS if self.protocol is Protocol.TEXT else PHOTOS
        return requests_of(self.url, self.model) or default

    @property
    def items(self) -> list[bytes] | list[None]:
        """Photos or texts to send; None stands for the model's example. Raises ValueError."""
        field = self.requests.item_field
        if self.photos and field is None:
            raise ValueError(f"{self.requests.model} takes neither a photo nor a text")
        if self.photos or field is None:
            return self.photos or [None]
        if self.requests.is_photo:
            return [payloads.SAMPLE.read_bytes()]
        return [self.requests.example[field].encode()]

    def payloads(self) -> list[Payload]:
        """Returns the HTTP requests, with the API key. Raises OSError and ValueError."""
        extra = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        plain = [self.requests.payload(item, self.protocol) for item in self.items]
        return [Payload(p.path, {**p.headers, **extra}, p.body) for p in plain]

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
            return [call(item, self.requests) for item in self.items]
        if self.protocol is Protocol.TCP:
            options = {"key": self.key, "model": self.model}
            return [frame(item, options, self.requests) for item in self.items]
        return [post(self.url, p.path, p.headers, p.body) for p in self.payloads()]

    def exactly(self, total: int, senders: int) -> Measurement:
        """Measures exactly `total` requests, by `senders` clients that wait for their answers."""
        loop_ = ClosedLoop(self.connections(), self.wire(), senders, total)
        name = f"{named(senders)}, {total} requests"
        return self._measure(partial(run_python, name, loop_, Plan(0, None, 1, 1)))

    def closed(self, concurrency: int, plan: Plan) -> Measurement:
        """Measures `concurrency` clients that wait for their answers."""
        name = named(concurrency)
        if self.motor == "wrk":
            return self._measure(partial(run_wrk, name, self.url, self.payloads(), concurrency, plan))
        loop_ = ClosedLoop(self.connections(), self.wire(), concurrency)
        return self._measure(partial(run_python, name, loop_, plan))

    def open(self, rate: float, arrivals: Arrivals, plan: Plan) -> Measurement:
        """Measures `rate` requests a second, whether or not answers come. Raises ValueError with wrk."""
        if self.motor == "wrk":
            raise ValueError("wrk does not support --rate")
        loop_ = OpenLoop(self.connections(), self.wire(), rate, arrivals)
        return self._measure(partial(run_python, f"{rate:g}/s {arrivals}", loop_, plan))

    def _measure(self, load: Callable[[], Measurement]) -> Measurement:
        """Runs a load; adds the server's own figures."""
        before = Scrape.of(self.url, self.model)
        figures = load()
        after = Scrape.of(self.url, self.model)
        if before is None or after is None:
            return figures
        change = after.since(before)
        figures.mean_batch = change.mean_batch()
        figures.batch_sizes = change.batch_sizes()
        figures.server_mean_ms = means = change.mean_ms()
        if figures.server_ms is None and "total" in means:
            figures.server_ms = add_rest(means)
        return figures
