"""Several models in one service: what idle ones cost a busy one, and what a flood of one costs another.

`python -m benchmarks neighbours --photo FILE` first starts pairs of services, models/food11 alone and
beside two other models, in alternating order, and sends photos to each. Then models/sentiment gets
`--rate` texts a second, alone and while 16 connections flood models/food11. Its p99 beside the flood
should be below the limit: its p99 alone, plus twice the mean time of a batch during the flood. The mean
includes the few, shorter batches of texts, so the limit is a little lower than with photos only.
"""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import service
from smallplates.cli.load import payloads, report, server_side
from smallplates.cli.load.loops import Arrivals, Plan
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.measurement import Measurement
from smallplates.cli.load.target import Target

ALONE = "models/food11"
BESIDE_TWO = f"{ALONE},models/sentiment,second=models/sentiment"
CONNECTIONS = (1, 16)
FLOOD = 16
TEXT = "The film was wonderful, but its end came too soon."


@contextmanager
def serving(models: str) -> Iterator[str]:
    """Serves models in fp32 with one runtime, so that no choice at startup differs; yields the URL."""
    with service.running(models=models, precision="fp32", cpu_runtime="onnxruntime") as running:
        end = time.monotonic() + service.START_S
        while not all_ready(running.url):
            if time.monotonic() > end:
                raise RuntimeError("not all models are ready")
            time.sleep(0.1)
        yield running.url


def all_ready(url: str) -> bool:
    """Returns whether all models are ready; the default one, without which the service isn't, is."""
    return all(row["state"] == "ready" for row in server_side.describe(url)["models"])


def pair(photo: bytes, connections: int, seconds: float, models: list[str]) -> dict[str, float]:
    """Measures the requests a second to food11 alone and beside two idle models, in the given order."""
    rates = {}
    for names in models:
        with serving(names) as url:
            plan = Plan(warm_up_s=1, window_s=seconds, fewest=1, most=1)
            rates[names] = Target(url, [photo], motor="wrk").closed(connections, plan).per_second
    alone, beside = rates[ALONE], rates[BESIDE_TWO]
    return {"connections": connections, "alone": alone, "beside": beside, "ratio": beside / alone}


def texts(url: str, rate: float, seconds: float) -> Measurement:
    """Measures the sentiment model at `rate` texts a second."""
    plan = Plan(warm_up_s=1, window_s=seconds, fewest=1, most=1)
    target = Target(url, [TEXT.encode()], model="sentiment")
    return target.open(rate, Arrivals.POISSON, plan)


def flood(photo: bytes, rate: float, seconds: float) -> dict[str, float]:
    """Measures the sentiment model alone and beside a flood of food11; times are in ms."""
    with serving(BESIDE_TWO) as url, ThreadPoolExecutor(1) as thread:
        alone = texts(url, rate, seconds)
        plan = Plan(warm_up_s=1, window_s=seconds + 2, fewest=1, most=1)
        flooding = thread.submit(Target(url, [photo], motor="wrk").closed, FLOOD, plan)
        time.sleep(1)
        beside = texts(url, rate, seconds)
        flooded = flooding.result()
    batch = flooded.server_mean_ms["infer"]
    answers = Counter(alone.statuses) + Counter(beside.statuses)
    return {
        "p50 alone": alone.p50,
        "p99 alone": alone.p99,
        "p50 beside": beside.p50,
        "p99 beside": beside.p99,
        "batch": batch,
        "limit": alone.p99 + 2 * batch,
        "photos a second": flooded.per_second,
        "failed": answers.total() - answers["200"],
    }


def main(
    photo: Annotated[Path, typer.Option(help="An image, sent as base64 in JSON.")] = payloads.SAMPLE,
    pairs: Annotated[int, typer.Option(help="Pairs of services with each number of connections.")] = 10,
    floods: Annotated[int, typer.Option(help="Services that are flooded.")] = 5,
    seconds: Annotated[float, typer.Option(help="Length of a measurement; of a flood, six times.")] = 5,
    rate: Annotated[float, typer.Option(help="Texts a second to the model beside the flood.")] = 10,
    json_file: Annotated[Path | None, typer.Option("--json", help="All figures.")] = None,
) -> None:
    """Measures a model beside idle ones, and one beside a model that is flooded."""
    image, orders = photo.read_bytes(), ([ALONE, BESIDE_TWO], [BESIDE_TWO, ALONE])
    idle = [pair(image, count, seconds, orders[n % 2]) for n in range(pairs) for count in CONNECTIONS]
    flooded = [flood(image, rate, 6 * seconds) for _ in range(floods)]
    report.print_table("food11, requests a second, alone and beside two idle models", idle)
    report.print_table(f"sentiment, {rate:g} texts a second, beside {FLOOD} connections", flooded)
    if json_file:
        write_results(json_file, report.command(), {"idle": idle, "flooded": flooded})
