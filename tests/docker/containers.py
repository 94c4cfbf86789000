"""Docker's command line, compose projects and single containers, for the tests of this folder."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smallplates.cli import processes
from tests.servers import ROOT, wait_for

TAG = "test"
BUILD_S = 1500
START_S = 600
NAMED_IN = {
    "PYTHON": "fastapi_onnx/Dockerfile",
    "HAPROXY": "docker/docker-compose-scale.yaml",
    "PROMETHEUS": "docker/docker-compose-monitoring.yaml",
}
"""Image of others -> the file that names it."""

HARDENED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true")


def run(*command: str, env: Mapping[str, str] | None = None, seconds: float = START_S) -> str:
    """A command's standard output, from the repository's root. Raises RuntimeError with what it said."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "COMPOSE_HTTP_TIMEOUT": "600", **(env or {})},
        text=True,
        capture_output=True,
        timeout=seconds,
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout.strip()


def inspect(name: str) -> dict[str, Any]:
    described: list[dict[str, Any]] = json.loads(run("docker", "inspect", name))
    return described[0]


def logs(identity: str) -> str:
    return run("sh", "-c", 'docker logs "$0" 2>&1', identity)


def healthy(identity: str) -> bool:
    """Whether a container's health check succeeds now: Docker itself asks every ten seconds only."""
    try:
        run("docker", "exec", identity, *inspect(identity)["Config"]["Healthcheck"]["Test"][1:])
    except RuntimeError:
        return False
    return True


def image(name: str) -> str:
    """The full name of one of our images, as these tests build it."""
    return f"smallplates/{name}:{TAG}"


def base(name: str) -> str:
    """The tag under which `docker/make_base_images.sh` keeps an image, pulled by its digest or not."""
    named: list[str] = re.findall(
        rf"{name}_IMAGE(?:=|:-)([^@}}\s]+)", (ROOT / NAMED_IN[name]).read_text()
    )
    return named[0]


def build(name: str, revision: str = "tested") -> None:
    """Builds an image from its Dockerfile; the host's network reaches the packages.

    `-gpu` behind a service's name: as docker-compose-gpu.yaml builds it.
    """
    folder = "notebooks" if name == "jupyter" else name.removesuffix("-gpu")
    command = ["docker", "build", "--quiet", "--network", "host", "--file", f"{folder}/Dockerfile"]
    if name.endswith("-gpu"):
        command += ["--build-arg", "REQUIREMENTS=requirements-gpu.txt"]
    for argument in (f"REVISION={revision}", f"PYTHON_IMAGE={base('PYTHON')}"):
        command += ["--build-arg", argument]
    run(*command, "--tag", image(name), ".", seconds=BUILD_S)


def wait_until(condition: Callable[[], object], what: str, seconds: float = START_S) -> None:
    """Returns as soon as the condition holds; containers take their time."""
    wait_for(condition, what, seconds)


@contextmanager
def container(
    name: str, port: int, *options: str, path: str = "/health/ready"
) -> Iterator[tuple[str, str]]:
    """Runs one of our images until the block ends; yields its id and the URL of its port, ready."""
    published = f"127.0.0.1::{port}"
    identity = run("docker", "run", "--detach", *HARDENED, "--publish", published, *options, image(name))
    try:
        url = f"http://{run('docker', 'port', identity, str(port)).splitlines()[0]}"

        def ready() -> bool:
            if not inspect(identity)["State"]["Running"]:
                raise RuntimeError(f"{name} has ended:\n{logs(identity)}")
            return processes.get(url + path) is not None

        wait_until(ready, f"{name} ready")
        yield identity, url
    finally:
        run("docker", "rm", "--force", "--volumes", identity)


def compose_command() -> list[str]:
    """`docker compose` where it is installed, else its first version, `docker-compose`."""
    known = subprocess.run(["docker", "compose", "version"], capture_output=True)
    if known.returncode == 0:
        return ["docker", "compose"]
    if not (old := shutil.which("docker-compose")):
        raise LookupError("neither `docker compose` nor docker-compose is installed")
    return [old]


@dataclass
class Stack:
    """A compose project of files in docker/, with settings that `.env` would hold."""

    files: Sequence[str]
    settings: Mapping[str, str]
    folder: Path
    """For an empty `.env`: a developer's own must not change what is tested."""

    def compose(self, *arguments: str, seconds: float = START_S) -> str:
        """Runs a command of compose on this project."""
        nothing = self.folder / "empty.env"
        nothing.touch()
        files = [
            part for name in self.files for part in ("--file", f"docker/docker-compose-{name}.yaml")
        ]
        project = ["--project-name", f"tested-{os.getpid()}", "--env-file", str(nothing)]
        env = {"TAG": TAG, **{f"{name}_IMAGE": base(name) for name in NAMED_IN}, **self.settings}
        return run(*compose_command(), *project, *files, *arguments, env=env, seconds=seconds)

    def containers(self, service: str) -> list[str]:
        return self.compose("ps", "--quiet", service).split()

    @contextmanager
    def up(self, *services: str) -> Iterator["Stack"]:
        """Starts these services from images that are there, and removes them with all they keep."""
        try:
            self.compose("up", "--detach", "--no-build", *services)
            yield self
        finally:
            self.compose("down", "--volumes", "--remove-orphans", "--timeout", "0")
