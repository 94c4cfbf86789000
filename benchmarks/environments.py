"""Virtual environments of the other servers: makes missing ones, and reads their versions."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

COMMON = (
    "cykooz-resizer; sys_platform == 'linux' and platform_machine == 'x86_64'",
    "msgspec",
    "numpy",
    "onnx",
    "openvino; sys_platform == 'linux' and platform_machine == 'x86_64'",
    "orjson",
    "pillow",
    "prometheus-client",
    "pybase64",
    "pydantic-settings",
    "python-multipart",
    "fastapi",
    "safetensors",
    "simplejpeg",
    "structlog",
    "tokenizers",
)
"""Packages that `peers.common` needs in every environment; ONNX Runtime comes in one of two builds."""

ASK_VERSIONS = """
import json, sys
from importlib.metadata import version
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""


@dataclass(frozen=True)
class Environment:
    """Virtual environment; several servers may share one."""

    name: str
    packages: tuple[str, ...]
    """Packages with versions that pip installs beside COMMON; the first one is the server."""

    gpu: bool = False
    """Whether ONNX Runtime needs CUDA."""

    @property
    def common(self) -> tuple[str, ...]:
        """Packages that `peers.common` and `peers.common_gpu` need."""
        return (*COMMON, "onnxruntime-gpu[cuda,cudnn]" if self.gpu else "onnxruntime")


def python_for(environment: Environment | None, folder: Path) -> Path:
    """Returns an environment's interpreter; makes the environment when it is missing or outdated.

    `folder` holds all environments. None is this project's own. Raises CalledProcessError when pip
    fails.
    """
    if environment is None:
        return Path(sys.executable)
    home = folder / environment.name
    python, marker = home / "bin" / "python", home / "installed"
    wanted = "\n".join((*environment.common, *environment.packages))
    if not marker.exists() or marker.read_text() != wanted:
        typer.echo(f"setting up {environment.name}")
        subprocess.run([sys.executable, "-m", "venv", home], check=True)  # noqa: S603
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *environment.common, *environment.packages], check=True)  # noqa: S603
        marker.write_text(wanted)
    return python


def versions(environment: Environment, folder: Path) -> dict[str, str]:
    """Returns the installed versions of the environment's own packages and of ONNX Runtime, by name."""
    names = [re.split(r"[\[<=]", package)[0] for package in environment.packages]
    runtime = "onnxruntime-gpu" if environment.gpu else "onnxruntime"
    command = [str(python_for(environment, folder)), "-c", ASK_VERSIONS, *names, runtime]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    by_name: dict[str, str] = json.loads(output)
    return {f"{environment.name}: {name}": version for name, version in by_name.items()}
