"""Job of `jobs`: a process that classifies one image.

It prints the class, and the seconds in which it imported the library and loaded the model, which are 0
for a client, and classified.

`python -m benchmarks.job load BACKEND MODEL THREADS PHOTO` loads a model of its own, as a script without
a service does: plain PyTorch or plain ONNX Runtime, for a single inference.
`python -m benchmarks.job ask URL PHOTO` asks a service.
"""

import json
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

TIMEOUT_S = 120


def load(backend: str, model_dir: str, threads: int) -> tuple[Any, float, float]:
    """Returns a model of this process, and the seconds; imports only what the backend needs."""
    started = time.perf_counter()
    if backend == "fastapi_pt":
        import torch

        from benchmarks.peers.eager import Eager

        torch.set_num_threads(threads)
        imported = time.perf_counter()
        model: Any = Eager(model_dir)
    else:
        from benchmarks.peers.common import Classify

        imported = time.perf_counter()
        model = Classify(model_dir, "plain", threads)
    loaded = time.perf_counter()
    return model, imported - started, loaded - imported


def ask(url: str, photo: bytes) -> str:
    """Classifies with the service at `url`, never through a proxy. Raises OSError for an error."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, photo, {"Content-Type": "image/jpeg"})  # noqa: S310
    with opener.open(request, timeout=TIMEOUT_S) as response:
        return str(json.load(response)["prediction"])


def main(arguments: list[str]) -> None:
    """Runs the job and prints its line."""
    photo = Path(arguments[-1]).read_bytes()
    import_s = load_s = 0.0
    if arguments[0] == "load":
        backend, model_dir, threads = arguments[1:4]
        model, import_s, load_s = load(backend, model_dir, int(threads))
    started = time.perf_counter()
    if arguments[0] == "load":
        answer = str(model.image_file(photo)["prediction"])
    else:
        answer = ask(arguments[1], photo)
    classify_s = time.perf_counter() - started
    sys.stdout.write(f"{answer}\t{import_s:.4f}\t{load_s:.4f}\t{classify_s:.4f}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
