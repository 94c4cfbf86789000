"""Machine, versions and commit, without which a figure means nothing; writes the results files.

Every command of `benchmarks` writes JSON of one shape: `command` repeats the measurement, `machine` says
where it ran, `results` are the figures.
"""

import json
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import psutil

from smallplates.settings import ROOT
from smallplates.system import cpus

OWN_PACKAGES = (
    "fastapi",
    "numpy",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "pillow",
    "torch",
    "torchvision",
    "uvicorn",
)
"""Packages of this project's environment that decide its speed."""

WRITTEN = (":!notebooks/*.ipynb", ":!benchmarks/results")
"""Paths, for git, that measurements write."""

Facts = dict[str, str | dict[str, str]]


def processor() -> str:
    """Returns the CPU's name, as the kernel reports it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def commit() -> str:
    """Returns the checkout's short hash; empty outside a checkout, or without git.

    `-dirty` when files differ, other than those that measurements write.
    """
    commands = (
        ["describe", "--always", "--exclude=*"],
        ["status", "--porcelain", "--untracked-files=no", "--", ".", *WRITTEN],
    )
    try:
        known, changed = (
            subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, check=False).stdout  # noqa: S603, S607
            for command in commands
        )
    except FileNotFoundError:
        return ""
    return known.decode().strip() + "-dirty" * bool(changed)


def versions() -> dict[str, str]:
    """Returns the versions of this project's own packages, by name."""
    packages = {package.name.lower(): package.version for package in metadata.distributions()}
    return {name: packages[name] for name in OWN_PACKAGES if name in packages}


def machine(others: Mapping[str, str] | None = None) -> Facts:
    """Returns CPU, cores, memory, kernel, Python, commit and versions.

    `others` adds the versions of other servers.
    """
    return {
        "cpu": processor(),
        "cores": str(cpus.usable()),
        "memory": f"{psutil.virtual_memory().total / 1e9:.1f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": commit(),
        "versions": {**versions(), **(others or {})},
    }


def write_results(
    path: Path, command: str, results: object, others: Mapping[str, str] | None = None, **more: object
) -> None:
    """Writes a results file and its folder; `more` adds further keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"command": command, "machine": machine(others), **more, "results": results}
    path.write_text(json.dumps(content, indent=1) + "\n")
