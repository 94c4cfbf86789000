"""Largest items: how far axes may vary for which model.json states no limit.

Called by `backend.py` where a graph is described, in a process of its own.
"""

import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fastapi_onnx.network import Network, graph_path, open_session
from fastapi_onnx.signature import MAX_OUTPUT
from smallplates.errors import ConfigurationError
from smallplates.models.description import DEFAULT_LIMIT
from smallplates.models.folder import Model
from smallplates.models.tensors import MAX_EXAMPLE, Signature, check_outputs
from smallplates.settings import Settings
from smallplates.worker.precision_check import random_inputs

SIZES = (DEFAULT_LIMIT // 2, 640, *(2**power for power in range(10, 23)))
"""Sizes that are tried for all such axes; the first one only shows how long larger ones take."""

MAX_CPU_S, MAX_BYTES = 1.0, 2**29
"""CPU time and memory in which the largest item is computed."""


def with_larger_limits(model: Model, signature: Signature) -> Iterator[Signature]:
    """Yields the signature, then with the limits of ever larger items that the graph computes.

    An item has up to MAX_EXAMPLE elements, and an output MAX_OUTPUT.
    """
    axes = [axis for axis in signature.input_axes if axis not in model.description.limits]
    if not axes or model.description.text:
        return
    yield signature
    try:
        session = open_session(model, graph_path(model), Settings(device="cpu"), None)
    except ConfigurationError:  # a worker will say so
        return
    network, s_per_element = Network(model, session, signature=signature), 0.0
    for size in SIZES:
        larger = replace(signature, limits=signature.limits | dict.fromkeys(axes, size))
        elements = larger.elements(larger.sizes_at(size))
        most = max(spec.largest(larger.limits) for spec in larger.outputs)
        if elements > MAX_EXAMPLE or most > MAX_OUTPUT or elements * s_per_element > MAX_CPU_S:
            return
        seconds = cpu_seconds(network, larger, size)
        if seconds > MAX_CPU_S or (not seconds and s_per_element):
            return
        s_per_element = seconds / elements
        if seconds and size > DEFAULT_LIMIT:
            yield larger


def cpu_seconds(network: Network, signature: Signature, size: int) -> float:
    """Computes an item of a size; returns the time, or 0 if that fails, or takes too much memory."""
    rows, before = signature.batch_size or 1, resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + MAX_BYTES, before[1]))
    start = time.process_time()
    try:
        outputs = network.infer(signature, random_inputs(signature, rows, size))
        check_outputs(signature, outputs, rows, signature.sizes_at(size))
    except Exception:  # of the runtime
        return 0.0
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    return time.process_time() - start
