"""Shared code of the notebooks: amounts to measure, the photo, and services that end with the notebook.

Environment: NOTEBOOK_QUICK=1 runs small measurements, as the tests do; NOTEBOOK_PHOTO is another image;
API_URL is a running service, which the first notebook then measures instead of starting its own.
"""

import atexit
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from benchmarks import service
from benchmarks.chapters import RESULTS
from benchmarks.running import Running
from smallplates.cli.load import payloads
from smallplates.cli.load.loops import Plan
from smallplates.cli.load.machine import write_results
from smallplates.system import cpus

T = TypeVar("T")
QUICK = os.environ.get("NOTEBOOK_QUICK") == "1"
PHOTO = Path(os.environ.get("NOTEBOOK_PHOTO", payloads.SAMPLE))
API_URL = os.environ.get("API_URL")
CORES = cpus.usable()

_services = ExitStack()
atexit.register(_services.close)


def pick(full: T, quick: T) -> T:
    """Returns `full`, or `quick` in a quick run."""
    return quick if QUICK else full


def plan() -> Plan:
    """Returns a warm-up of 1 s and three windows of 2 s, always the same, so that figures compare."""
    return pick(Plan(1, 2, 3, 3), Plan(0.2, 0.3, 2, 2))


def serve(package: str = "fastapi_onnx", **settings: object) -> Running:
    """Starts a service with these settings; it ends with `stop`, or with the notebook's kernel."""
    return _services.enter_context(service.running(package, **settings))


def stop() -> None:
    """Ends all services that `serve` started."""
    _services.close()


def keep(rows: list[dict[str, object]]) -> None:
    """Writes the figures of both backends, which `make docs-tables` puts into README.md.

    A quick run writes nothing, and neither does one of a service that was running.
    """
    if not (QUICK or API_URL):
        write_results(RESULTS / "notebook.json", "make notebooks", rows)


def worth_showing(counts: list[int]) -> list[int]:
    """Returns the numbers of instances up to four a core; more only fill the memory."""
    return [count for count in counts if count <= 4 * CORES]
