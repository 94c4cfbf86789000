"""Triton with its Python backend, an instance per core, no batches; nvidia-pytriton contains the server.

Tried on two cores with 16 and 64 connections, in texts a second: none 61 and 60, dynamic batches of up
to two 61 and 55. A batch is padded to its longest text.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.common import CORES
from benchmarks.peers.triton_launch import launch
from benchmarks.table_model import CLASSES, COLUMNS, INPUT, OUTPUT

MODEL_DIR, PORT, PIPELINE = sys.argv[1:4]
OF_TEXT = """
input [{ name: "INPUT" data_type: TYPE_STRING dims: [ 1 ] }]
output [
  { name: "LABEL" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "PROBABILITY" data_type: TYPE_FP32 dims: [ 1 ] }
]
"""
OF_ROWS = f"""
input [{{ name: "{INPUT}" data_type: TYPE_FP32 dims: [ 1, {COLUMNS} ] }}]
output [{{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ 1, {CLASSES} ] }}]
"""
CONFIG = f"""
name: "classifier"
backend: "python"
max_batch_size: 0
instance_group [{{ count: {CORES} kind: KIND_CPU }}]
{OF_ROWS if PIPELINE == "table" else OF_TEXT}
"""

if __name__ == "__main__":
    repository = Path(tempfile.mkdtemp(prefix="triton-"))
    (repository / "classifier" / "1").mkdir(parents=True)
    (repository / "classifier" / "config.pbtxt").write_text(CONFIG)
    source = Path(__file__).with_name("triton_model.py")
    shutil.copy(source, repository / "classifier" / "1" / "model.py")
    os.environ["PEER_MODEL_DIR"], os.environ["PEER_PIPELINE"] = MODEL_DIR, PIPELINE
    os.environ["PEER_PATH"] = os.pathsep.join(path for path in sys.path if path)
    launch(repository, PORT)
