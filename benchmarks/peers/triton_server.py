"""Triton with its Python backend: an instance per core; nvidia-pytriton carries the server."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytriton

from benchmarks.peers.common import CORES

MODEL_DIR, PORT, PIPELINE = sys.argv[1:4]
CONFIG = """
name: "classifier"
backend: "python"
max_batch_size: 0
input [{ name: "IMAGE" data_type: TYPE_STRING dims: [ 1 ] }]
output [
  { name: "LABEL" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "PROBABILITY" data_type: TYPE_FP32 dims: [ 1 ] }
]
instance_group [{ count: CORES kind: KIND_CPU }]
""".replace("CORES", str(CORES))

if __name__ == "__main__":
    home = Path(pytriton.__file__).parent / "tritonserver"
    repository = Path(tempfile.mkdtemp(prefix="triton-"))
    (repository / "classifier" / "1").mkdir(parents=True)
    (repository / "classifier" / "config.pbtxt").write_text(CONFIG)
    source = Path(__file__).with_name("triton_model.py")
    shutil.copy(source, repository / "classifier" / "1" / "model.py")
    backends = repository.with_suffix(".backends")
    shutil.copytree(home / "backends", backends)
    stubs = home / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(stubs / "triton_python_backend_stub", backends / "python")
    libraries = str(home.parent.parent / "nvidia_pytriton.libs")
    os.environ["PEER_MODEL_DIR"], os.environ["PEER_PIPELINE"] = MODEL_DIR, PIPELINE
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([libraries, os.environ.get("LD_LIBRARY_PATH", "")])
    os.environ["PEER_PATH"] = os.pathsep.join(path for path in sys.path if path)
    server = str(home / "bin" / "tritonserver")
    os.execv(  # noqa: S606 a program of the package
        server,
        [
            server,
            f"--model-repository={repository}",
            f"--backend-directory={backends}",
            f"--http-port={PORT}",
            "--http-address=127.0.0.1",
            "--allow-grpc=false",
            "--allow-metrics=false",
            "--log-error=true",
            "--log-info=false",
        ],
    )
