"""Number of web processes for `web_processes=auto`, by what warm-up has measured; for `parent.py`."""

import sys
import time

from serving.engine import topology
from serving.engine.supervisor import Supervisor
from serving.model import ImagePipeline
from serving.protocols.native import EXAMPLE
from serving.settings import Settings
from serving.system import cpus
from serving.tasks.image.decode import ImageDecoder

ROUNDS = 10
REQUEST_MS = 1.1
"""Time for a request beside decoding the example: HTTP, routing, base64, JSON, the engine's client, and
what a photo of 400x300 pixels takes longer to decode.

Measured on an AMD EPYC as the CPU time of the web process of a fake service, whose workers sleep: 1.57
ms for each `POST /predict` of such a photo in base64, at 16 connections, less 0.45 ms for the example.
"""


def web_processes(settings: Settings, engine: Supervisor, pipeline: ImagePipeline) -> tuple[int, str]:
    """Returns how many web processes an engine that has started needs, and why, in words."""
    cores, layout, profile = cpus.usable(), engine.layout, engine.profile
    if profile["info"]["device"] != "cpu":
        return layout.frontends, f"{cores} cores, {layout.workers} of them for the GPU's workers"
    cap, threads = profile["batch_cap"], settings.intra_op_threads
    worker_ms, web_ms = profile["batch_ms"][str(cap)] / cap, request_ms(pipeline)
    count = topology.balanced_web_processes(cores, layout.workers, threads, worker_ms, web_ms)
    reason = f"{cores} cores, {worker_ms:.1f} ms a picture in a worker, {web_ms:.1f} ms in a web process"
    return min(count, layout.frontends), reason


def request_ms(pipeline: ImagePipeline) -> float:
    """Returns a web process's time for a request, in ms: the shortest decoding and `REQUEST_MS`."""
    decoder, data = ImageDecoder(pipeline, sys.maxsize), EXAMPLE.read_bytes()
    return min(decoding_ms(decoder, data) for _ in range(ROUNDS)) + REQUEST_MS


def decoding_ms(decoder: ImageDecoder, data: bytes) -> float:
    """Returns the time of one decoding in ms."""
    started = time.perf_counter()
    decoder.decode(data)
    return 1000 * (time.perf_counter() - started)
