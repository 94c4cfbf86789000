"""Runs the Triton in the wheel nvidia-pytriton, which has the Python backend only.

`python -m benchmarks.peers.triton_launch REPOSITORY PORT` needs the interpreter of an environment that
has the wheel and the models' packages; `triton_server.py` calls `launch`.
"""

import os
import shutil
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path


def launch(repository: Path, port: str, *options: str) -> None:
    """Replaces this process by the server, with HTTP on 127.0.0.1 only. Returns only by an exception."""
    package = find_spec("pytriton")
    if package is None or package.origin is None:
        raise FileNotFoundError("nvidia-pytriton is not installed here")
    home = Path(package.origin).parent / "tritonserver"
    backends = Path(tempfile.mkdtemp(prefix="triton-")) / "backends"
    shutil.copytree(home / "backends", backends)
    stubs = home / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(stubs / "triton_python_backend_stub", backends / "python")
    libraries = str(home.parent.parent / "nvidia_pytriton.libs")
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([libraries, os.environ.get("LD_LIBRARY_PATH", "")])
    server = str(home / "bin" / "tritonserver")
    os.execv(  # noqa: S606 a program of the package
        server,
        [
            server,
            f"--model-repository={repository}",
            f"--backend-directory={backends}",
            f"--http-port={port}",
            "--http-address=127.0.0.1",
            "--allow-grpc=false",
            "--allow-metrics=false",
            "--log-error=true",
            "--log-info=false",
            *options,
        ],
    )


if __name__ == "__main__":
    repository = Path(sys.argv[1]).resolve()
    os.chdir(sysconfig.get_path("purelib"))  # the stub, isolated, finds packages where it is started
    launch(repository, *sys.argv[2:])
