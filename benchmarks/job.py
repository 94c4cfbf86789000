"""Job of `jobs`: a process that classifies one image; prints the seconds that this took, and its class.

`python -m benchmarks.job load BACKEND MODEL THREADS PHOTO` loads a model of its own, as a script without
a service does: plain PyTorch or plain ONNX Runtime, for a single inference. It loads first, and the
seconds begin then. `python -m benchmarks.job ask URL PHOTO` asks a service.
"""

import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

TIMEOUT_S = 120
Classify = Callable[[bytes], str]


def load(backend: str, model_dir: str, threads: int) -> Classify:
    """Loads a model into this process; imports only what the backend needs."""
    if backend == "fastapi_pt":
        import torch

        from benchmarks.peers.eager import Eager

        torch.set_num_threads(threads)
        answer = Eager(model_dir).image_file
    else:
        from benchmarks.peers import common

        answer = common.Classify(model_dir, "plain", threads).image_file
    return lambda photo: str(answer(photo)["prediction"])


def ask(url: str, photo: bytes) -> str:
    """Classifies with the service at `url`, never through a proxy, with the key of the environment.

    Raises OSError for an error.
    """
    key = os.environ.get("SERVING_API_KEY")
    headers = {"Content-Type": "image/jpeg", **({"Authorization": f"Bearer {key}"} if key else {})}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, photo, headers)  # noqa: S310
    with opener.open(request, timeout=TIMEOUT_S) as response:
        return str(json.load(response)["prediction"])


def main(arguments: list[str]) -> None:
    """Runs the job and prints the seconds of the classification, and the class."""
    photo = Path(arguments[-1]).read_bytes()
    if arguments[0] == "ask":
        classify: Classify = partial(ask, arguments[1])
    else:
        backend, model_dir, threads = arguments[1:4]
        classify = load(backend, model_dir, int(threads))
    started = time.perf_counter()
    answer = classify(photo)
    sys.stdout.write(f"{time.perf_counter() - started} {answer}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
