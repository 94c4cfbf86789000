"""Milliseconds of each part of a request: the parts alone, and one client of the service.

`python -m benchmarks parts --photo FILE --model DIR` times the parts in this process, warm, on one
thread. The service reports its share in Server-Timing; the remainder is HTTP and waking up.
"""

import http.client
import io
import json
import statistics
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import numpy as np
import orjson
import typer
from PIL import Image

from benchmarks import model, running, servers
from fastapi_onnx.backend import OnnxBackend
from smallplates.base64 import decode_base64
from smallplates.models.folder import Model
from smallplates.models.scores import best
from smallplates.settings import Settings
from smallplates.tasks.image.decode import ImageDecoder
from smallplates.tasks.image_classification import compute_logits

CALLS = 200


def median_ms(call: Callable[[], object]) -> float:
    """Returns the median time of `CALLS` calls, after 20 to warm up."""
    times = []
    for _ in range(CALLS + 20):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times[20:]) * 1000


def alone(model_dir: Path, photo: bytes) -> dict[str, float]:
    """Returns the median ms of each part in this process."""
    settings = Settings(model_dir=model_dir, device="cpu")
    described = Model.read(model_dir)
    image = described.description.pipeline
    decoder = ImageDecoder(image, settings.max_image_pixels)
    body = json.dumps({"image": b64encode(photo).decode()}).encode()
    text = json.loads(body)["image"]
    pixels = decoder.decode(photo)
    slot = np.empty_like(pixels)
    backend = OnnxBackend()
    backend.load(described, settings)
    logits = compute_logits(backend, pixels[np.newaxis])[0]

    def decode_only() -> None:
        with Image.open(io.BytesIO(photo)) as opened:
            opened.draft(None, decoder.draft_size(*opened.size))
            opened.load()

    def answer() -> bytes:
        score = best(described.labels, logits, 1)[0]
        return orjson.dumps({"prediction": score["label"], "probability": score["probability"]})

    whole = median_ms(lambda: decoder.decode(photo))
    jpeg = median_ms(decode_only)
    return {
        "JSON": median_ms(lambda: msgspec.json.decode(body)),
        "base64": median_ms(lambda: decode_base64(text)),
        "JPEG decode": jpeg,
        "resize, to pixels": whole - jpeg,
        "pixels into the slot": median_ms(lambda: np.copyto(slot, pixels)),
        "inference, one thread": median_ms(lambda: compute_logits(backend, pixels[np.newaxis])),
        "softmax, answer": median_ms(answer),
    }


def one_client(url: str, body: bytes) -> dict[str, float]:
    """Returns the median ms that one client measures, and those of the stages in Server-Timing."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    seen: dict[str, list[float]] = {}

    def ask() -> None:
        started = time.perf_counter()
        connection.request("POST", parts.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        seen.setdefault("client", []).append((time.perf_counter() - started) * 1000)
        for stage in (response.headers["Server-Timing"] or "").split(", "):
            name, _, value = stage.partition(";dur=")
            seen.setdefault(name, []).append(float(value))

    for _ in range(CALLS):
        ask()
    connection.close()
    return {name: statistics.median(values[20:]) for name, values in seen.items()}


def main(
    photo: Annotated[Path, typer.Option(help="A JPEG.")],
    model_dir: Annotated[
        Path, typer.Option("--model", help="A model's folder; this one is made where it is missing.")
    ] = model.FOLDER,
) -> None:
    """Prints the milliseconds of each part."""
    data = photo.read_bytes()
    model.ensure(model_dir)
    for name, ms in alone(model_dir, data).items():
        typer.echo(f"{name:24}{ms:8.3f} ms")
    body = json.dumps({"image": b64encode(data).decode()}).encode()
    server = servers.ours("this service")
    folder = model_dir.resolve()
    with running.running(server, folder, Path(), servers.Pipeline.SHARED, body) as served:
        seen = one_client(served.url, body)
    rest = seen["total"] - seen["decode"] - seen["queue"] - seen["infer"]
    for name in ("decode", "queue", "infer", "total", "client"):
        typer.echo(f"served, {name:16}{seen[name]:8.3f} ms")
    typer.echo(f"{'served, the rest':24}{rest:8.3f} ms (HTTP, ASGI, hand-over of the answer)")
