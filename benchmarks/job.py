"""Job of `jobs`: a process that classifies one image and prints its class.

`python -m benchmarks.job load BACKEND MODEL THREADS PHOTO` loads a model of its own, as a script without
a service does: plain PyTorch or plain ONNX Runtime, for a single inference.
`python -m benchmarks.job ask URL PHOTO` asks a service.
"""

import json
import sys
import urllib.request
from pathlib import Path

TIMEOUT_S = 120


def load(backend: str, model_dir: str, threads: int, photo: bytes) -> str:
    """Classifies with a model of this process; imports only what the backend needs."""
    if backend == "fastapi_pt":
        import torch

        from benchmarks.peers.eager import Eager

        torch.set_num_threads(threads)
        return str(Eager(model_dir).image_file(photo)["prediction"])
    from benchmarks.peers.common import Classify

    return str(Classify(model_dir, "plain", threads).image_file(photo)["prediction"])


def ask(url: str, photo: bytes) -> str:
    """Classifies with the service at `url`, never through a proxy. Raises OSError for an error."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, photo, {"Content-Type": "image/jpeg"})  # noqa: S310
    with opener.open(request, timeout=TIMEOUT_S) as response:
        return str(json.load(response)["prediction"])


def main(arguments: list[str]) -> None:
    """Runs the job and prints its class."""
    photo = Path(arguments[-1]).read_bytes()
    if arguments[0] == "ask":
        answer = ask(arguments[1], photo)
    else:
        backend, model_dir, threads = arguments[1:4]
        answer = load(backend, model_dir, int(threads), photo)
    sys.stdout.write(f"{answer}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
