"""What a figure means nothing without: machine, versions, commit; and the file that keeps both.

Every command of `benchmarks` that writes JSON writes this shape: `command` makes the figures again,
`machine` says where they were made, `results` are the figures.
"""

import json
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import psutil

from serving.settings import ROOT
from serving.system import cpus

OWN_PACKAGES = (
    "fastapi",
    "numpy",
    "onnxruntime",
    "onnxruntime-gpu",
    "pillow",
    "torch",
    "torchvision",
    "uvicorn",
)
"""Those of this project's environment that decide how fast it is."""

Facts = dict[str, str | dict[str, str]]


def cores() -> int:
    """CPU cores that this process may use."""
    return cpus.usable()


def processor() -> str:
    """The CPU's name, as the kernel tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def commit() -> str:
    """Short hash of the checkout, with `-dirty` where files differ from it; empty outside of one."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603


def versions() -> dict[str, str]:
    """Package -> version, of what this project itself runs on."""
    found = {}
    for name in OWN_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine(others: Mapping[str, str] | None = None) -> Facts:
    """CPU, cores, memory, kernel, Python, commit, versions; `others` are versions of further servers."""
    return {
        "cpu": processor(),
        "cores": str(cores()),
        "memory": f"{psutil.virtual_memory().total / 1e9:.1f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": commit(),
        "versions": {**versions(), **(others or {})},
    }


def write_results(
    path: Path,
    command: str,
    results: object,
    others: Mapping[str, str] | None = None,
    **more: object,
) -> None:
    """Writes the file described above, its folder included; `more` goes in beside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"command": command, "machine": machine(others), **more, "results": results}
    path.write_text(json.dumps(content, indent=1) + "\n")
