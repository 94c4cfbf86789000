"""Infinity for texts: its optimum engine, which batches by length, on all cores in one process.

It classifies or embeds. The engine finds a graph only in the current folder. Tried on two cores with 16
and 64 connections, in texts a second: batches of up to four 51 and 49, eight 51 and 52, sixteen 52 and
49.
"""

import os
import sys
from pathlib import Path

MODEL_DIR, PORT = sys.argv[1:3]

if __name__ == "__main__":
    os.chdir(MODEL_DIR)
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": os.environ["TMPDIR"], "DO_NOT_TRACK": "1"}
    options = [
        "--model-id",
        ".",
        "--served-model-name",
        "model",
        "--engine",
        "optimum",
        "--device",
        "cpu",
    ]
    address = ["--host", "127.0.0.1", "--port", PORT, "--log-level", "error", "--no-model-warmup"]
    program = str(Path(sys.executable).with_name("infinity_emb"))
    options += ["--onnx-do-not-prefer-quantized"]  # fp32 beside a model_quantized.onnx, too
    options += ["--pooling-method", "mean"]  # of vectors; by default that of the first token
    batch = ["--batch-size", os.environ.get("PEER_BATCH", "8")]
    os.execv(program, [program, "v2", *options, *batch, *address])  # noqa: S606 of the package
