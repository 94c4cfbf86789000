"""Shared code of the notebooks: what they measure, how much of it, and where it ran.

Environment: NOTEBOOK_QUICK=1 runs small measurements, as the tests do; NOTEBOOK_PHOTO is another image;
API_URL is a running service, which the first three notebooks then measure instead of starting their own;
SERVING_API_KEY is its key.
"""

import atexit
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import psutil

from benchmarks import service
from benchmarks.chapters import RESULTS
from benchmarks.running import Running
from benchmarks.usage import cpu_seconds, tree
from smallplates import Client
from smallplates.cli.load import payloads
from smallplates.cli.load.loops import Plan
from smallplates.cli.load.machine import commit, processor, versions, write_results
from smallplates.cli.load.measurement import Measurement
from smallplates.models.folder import file_sha256
from smallplates.settings import ROOT
from smallplates.system import cpus

T = TypeVar("T")
QUICK = os.environ.get("NOTEBOOK_QUICK") == "1"
PHOTO = Path(os.environ.get("NOTEBOOK_PHOTO", payloads.SAMPLE))
API_URL = os.environ.get("API_URL")
KEY = os.environ.get("SERVING_API_KEY")
CORES = cpus.usable()
FOOD = ROOT / "models" / "food11"
ALIKE = service.ALIKE
OTHERS = 0.1  # share of all cores, from which on other programs disturb a measurement

_services = ExitStack()
atexit.register(_services.close)


def pick(full: T, quick: T) -> T:
    """Returns `full`, or `quick` in a quick run."""
    return quick if QUICK else full


def plan() -> Plan:
    """Returns a warm-up of 1 s and three windows of 2 s, always the same, so that figures compare."""
    return pick(Plan(1, 2, 3, 3), Plan(0.2, 0.3, 3, 3))


def serve(package: str = "fastapi_onnx", **settings: object) -> Running:
    """Starts a service with these settings; it ends with `stop`, or with the notebook's kernel."""
    return _services.enter_context(service.running(package, **settings))


def served(variants: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Starts a service for each variant, with the arguments of `serve`; returns the URLs by name.

    If API_URL names a running service, it is the only one.
    """
    if API_URL:
        return {"running service": API_URL}
    return {name: serve(**arguments).url for name, arguments in variants.items()}  # type: ignore[arg-type]


def stop() -> None:
    """Ends all services that `serve` started."""
    _services.close()


def about(*models: str) -> str:
    """Returns commit, machine and versions, and lines of `service_line` or `folder_line`."""
    where = f"{CORES} cores of {processor()}, Python {platform.python_version()}"
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    known = commit() or os.environ.get("REVISION") or "unknown"
    return "\n".join([f"commit {known}, {where}" + ", quick" * QUICK, packages, *models])


def service_line(name: str, url: str) -> str:
    """Returns what a service says of its model."""
    with Client(url, api_key=KEY) as client:
        model = client.model().body
    return (
        f"{name}: {model['name']} in {model['precision']} on {model['backend']} ({model['device']}), "
        f"{model['instances']} x {model['threads']} threads, batches of up to "
        f"{model['max_batch_size']}, SHA-256 of model.json {model['sha256']}"
    )


def folder_line(folder: Path, precision: str) -> str:
    """Returns which model lies in a folder; an export has no `model.json`."""
    files = (folder / name for name in ("model.json", "model.onnx"))
    file = next(path for path in files if path.exists())
    return f"{folder.name} in {precision}, SHA-256 of {file.name} {file_sha256(file)}"


def undisturbed(measure: Callable[[], Measurement]) -> tuple[Measurement, list[str]]:
    """Measures, and once more if there are reasons to doubt the figures, unless the run is quick.

    Returns the last figures, and the reasons to doubt these.
    """
    for _ in range(pick(2, 1)):
        before, started = others_seconds(), time.perf_counter()
        seen = measure()
        cores = (others_seconds() - before) / (time.perf_counter() - started)
        if not (reasons := doubts(seen, cores)):
            break
    return seen, reasons


def others_seconds() -> float:
    """Returns the CPU time that programs other than the notebook and its services have used.

    Not known beside a service that was running: 0.
    """
    if API_URL:
        return 0.0
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    return float(busy) - cpu_seconds(tree(os.getpid()))


def doubts(seen: Measurement, others: float) -> list[str]:
    """Returns the reasons to doubt figures, if other programs used so many cores meanwhile.

    The windows of random arrivals always differ; but in the long run, answers keep up with requests.
    """
    reasons = seen.warnings()
    if (rate := seen.offered_per_second) is not None:
        reasons = replace(seen, stable=None).warnings()
        if seen.per_second < rate - 3 * (rate / seen.seconds) ** 0.5:
            reasons.append(f"{seen.load}: answers fell behind requests")
    if others > OTHERS * CORES:
        reasons.append(f"{seen.load}: other programs used {others:.2f} cores")
    return reasons


def compared(before: float, after: float) -> str:
    """Says how a latency has changed; a tenth is within what runs differ by."""
    change = after / before - 1
    verdict = "about the same" if abs(change) <= 0.1 else "shorter" if change < 0 else "longer"
    return f"{before:.3g} -> {after:.3g} ms ({change:+.0%}): {verdict}"


def keep(rows: list[dict[str, object]]) -> None:
    """Writes the figures of both backends, which `make docs-tables` puts into README.md.

    A quick run writes nothing, and neither does one of a service that was running.
    """
    if not (QUICK or API_URL):
        write_results(RESULTS / "notebook.json", "make notebooks", rows)


def worth_showing(counts: list[int]) -> list[int]:
    """Returns the numbers of instances up to four a core; more only fill the memory."""
    return [count for count in counts if count <= 4 * CORES]
