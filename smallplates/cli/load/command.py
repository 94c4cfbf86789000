"""Load on a running server, in a closed or an open loop, as its clients see it.

`smallplates load URL --concurrency 1,4,16` and `... --rate 120 --arrivals poisson`. Windows
are measured until throughput and median latency agree over three of them; `--requests 1000` sends just
as many instead. The report also has the server's own figures: the stages in Server-Timing, the batches
in /metrics.
"""

import json
import math
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from smallplates.cli.load import payloads, report
from smallplates.cli.load.loops import Arrivals, Plan
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.measurement import Measurement, plot_latencies, plot_throughput
from smallplates.cli.load.options import numbers
from smallplates.cli.load.payloads import Protocol
from smallplates.cli.load.server_side import describe
from smallplates.cli.load.target import Target
from smallplates.errors import ConfigurationError
from smallplates.settings import DAY_S


def limit_per_second(path: Path | None, precision: str) -> float | None:
    """Returns the best rate of decoding with inference in a file of `python -m benchmarks limit`.

    None if the file has nothing in this precision. Raises ConfigurationError and OSError.
    """
    if path is None:
        return None
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text())["results"]["whole"]
        rates = [float(row["per_second"]) for row in rows if row["precision"] == precision]
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(f"{path} is not a result of benchmarks limit") from error
    return max(rates, default=None)


def publish(
    target: Target,
    figures: list[Measurement],
    limit: Path | None,
    json_file: Path | None,
    csv_file: Path | None,
    plot: Path | None,
) -> None:
    """Prints the tables, and writes the requested files."""
    model = describe(target.url, target.model) if limit or json_file else {}
    best = limit_per_second(limit, model.get("precision", "fp32"))
    for result in figures:
        result.share_of_limit = round(result.per_second / best, 3) if best else None
    client = [result.seen_by_client() for result in figures]
    server = [result.seen_by_server() for result in figures]
    report.print_table(
        f"{target.protocol} to {target.url}, as the client sees it; latencies in ms", client
    )
    report.print_table(
        "where the median's milliseconds go, as the server reports; outside: before and after it",
        server,
        [warning for result in figures for warning in result.warnings()],
    )
    if json_file:
        write_results(json_file, report.command(), [asdict(result) for result in figures], model=model)
    if csv_file:
        report.write_csv(csv_file, [{**c, **s} for c, s in zip(client, server, strict=True)])
    if plot:
        plots = [partial(plot_latencies, measured=figures)]
        closed_loops = [result for result in figures if result.offered_per_second is None]
        if len(closed_loops) > 1:
            plots.append(partial(plot_throughput, measured=closed_loops))
        report.save_picture(plot, *plots)


def try_out(target: Target) -> None:
    """Sends one request. Raises ConfigurationError if it fails, unless the server is overloaded."""
    (status,) = target.exactly(1, 1).statuses
    if status not in ("200", "429", "503"):
        cure = "; pass the key with --key" if status in ("401", "unauthenticated") else ""
        raise ConfigurationError(f"the first request got {status.replace('failed', 'no answer')}{cure}")


def main(
    url: Annotated[str, typer.Argument(help="Base URL of the server, http://host:port.")],
    photo: Annotated[
        Path | None,
        typer.Option(
            help="Image file, a folder of image files, or a text file with one text. By default, the "
            "example of the server's model, or a photo if it takes photos."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the model. By default, the server's default model.")
    ] = None,
    protocol: Annotated[
        Protocol, typer.Option(help="Protocol and format of the requests.")
    ] = Protocol.JSON,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port for grpc or tcp.")] = None,
    concurrency: Annotated[
        str, typer.Option(help="Numbers of connections in a closed loop, separated by commas.")
    ] = "1,4,16",
    requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000_000,
            help="Send this many requests with each number of connections, without warm-up and windows.",
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second in an open loop.")] = None,
    arrivals: Annotated[Arrivals, typer.Option(help="Arrival pattern for --rate.")] = Arrivals.POISSON,
    warm_up: Annotated[
        float, typer.Option(min=0, max=DAY_S, help="Seconds of load before the measurement.")
    ] = 2.0,
    window: Annotated[float, typer.Option(min=0.01, max=DAY_S, help="Seconds per window.")] = 2.0,
    windows: Annotated[int, typer.Option(min=1, help="Maximum number of windows.")] = 10,
    motor: Annotated[
        str, typer.Option(help="Load generator: python or wrk (closed loop only).")
    ] = "python",
    key: Annotated[str | None, typer.Option(envvar="SERVING_API_KEY", help="The API key.")] = None,
    limit: Annotated[
        Path | None,
        typer.Option(help="Results of `benchmarks limit --json`, to report the share of that limit."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for all figures.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="File for the table.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Writes PLOT.png and PLOT.svg.")] = None,
) -> None:
    """Measures latency and throughput of a running server.

    The exit code is 1 if no request succeeds.
    """
    try:
        items = payloads.photos(photo) if photo else []
        target = Target(url, items, protocol, key, motor, port, model)
        target.wire()
    except ConfigurationError:
        raise
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    plan = Plan(warm_up, window, min(3, windows), windows)
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise typer.BadParameter("--rate must be a positive number")
    if requests is not None and (rate is not None or motor != "python"):
        raise typer.BadParameter("--requests is for a closed loop of the load generator python")
    loads = numbers(concurrency)
    try_out(target)
    if rate is None:
        closed = partial(target.closed, plan=plan)
        measure = partial(target.exactly, requests) if requests else closed
        results = [measure(count) for count in tqdm(loads, desc="loads", mininterval=1)]
    else:
        results = [target.open(rate, arrivals, plan)]
    publish(target, results, limit, json_file, csv_file, plot)
    counts = sum((Counter(result.statuses) for result in results), Counter())
    if not counts["200"]:
        statuses = ", ".join(f"{status}: {count}" for status, count in counts.items())
        raise ConfigurationError(f"no request succeeded; statuses: {statuses or 'none'}")


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(main)
