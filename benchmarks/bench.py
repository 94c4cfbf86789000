"""Short measurement of limit, load and a comparison with other servers: `make bench`.

Takes under ten minutes on two cores, including the installation of the other servers. The files in
`benchmarks/results/` come from the same commands, given more time.
"""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import compare, limit, service
from smallplates.cli.load import command as load
from smallplates.cli.load import payloads
from smallplates.cli.load.loops import Arrivals, Plan
from smallplates.cli.load.target import Target

PEERS = ["this service", "mosec", "litserve", "fastapi, onnx"]
SHARE = 0.8  # of the capacity, for random arrivals


def loads(photo: Path, out: Path) -> None:
    """Measures the shipped model: closed loops, then random arrivals at SHARE of the best rate."""
    plan = Plan(2, 2, 3, 6)
    with service.running("fastapi_onnx") as served:
        target = Target(served.url, [photo.read_bytes()])
        results = [target.closed(count, plan) for count in (1, 4, 16, 64)]
        best = max(result.per_second for result in results)
        results.append(target.open(round(SHARE * best), Arrivals.POISSON, plan))
        load.publish(
            target, results, out / "limit.json", out / "load.json", out / "load.csv", out / "load"
        )


def main(
    photo: Annotated[Path, typer.Option(help="An image.")] = payloads.SAMPLE,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("runs/bench"),
) -> None:
    """Measures limit, load, and a short comparison with other servers."""
    limit.main(photo=photo, backend=None, seconds=0.7, json_file=out / "limit.json", plot=out / "limit")
    loads(photo, out)
    if shutil.which("wrk") is None:
        typer.echo("wrk is not installed: no comparison with other servers")
        return
    compare.main(
        photo=photo,
        rounds=2,
        seconds=3,
        connections="1,16",
        only=PEERS,
        json_file=out / "compare.json",
    )
