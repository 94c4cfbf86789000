"""One inference worker, a program of its own: takes batches, computes them, reports.

Started by `supervisor.py` as `python -m serving.engine.worker ARGUMENTS`, with its descriptors passed
on. It ends when the supervisor closes the control pipe, and with the supervisor's own death. What it
has taken and not yet reported always stands in its inbox in shared memory, into which the kernel puts
the records itself: whenever it is killed, nothing it had taken is lost.

On a GPU one thread does nothing but call the backend; while it computes a batch, the main thread reports
the one before and gathers the next. On a CPU, where that would take the cores from the computation,
there is one thread.
"""

import signal

if __name__ == "__main__":  # a whole group may get them: the supervisor ends us
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

import importlib
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from serving.backends import batch_sizes
from serving.backends.base import SlotReader
from serving.engine import topology, warmup
from serving.engine.executor import BatchExecutor, InFlightBatch
from serving.engine.memory import Memory, Signature, SlotLayout, State, generation_of, slot_of
from serving.engine.queue import WorkQueue
from serving.engine.worker_args import WorkerArgs, die_with_parent, give_memory_back, gpu_uuid
from serving.errors import ConfigurationError
from serving.logging import configure_logging, logger
from serving.model import Model
from serving.settings import Settings
from serving.system import cpus

SERVE = b"s"


class Worker:
    """The loop; see the module."""

    def __init__(self, arguments: WorkerArgs, settings: Settings) -> None:
        self.index = arguments.index
        self.settings = settings
        self.memory = Memory(arguments.memory_fd, SlotLayout(**arguments.layout))
        self.queue = WorkQueue(
            self.memory, arguments.index, arguments.work_fds, arguments.control_fd, settings
        )
        self._computing = BatchExecutor(self.memory, arguments.index, self.queue, arguments.done_fds)

    def load(self, arguments: WorkerArgs) -> dict[str, Any]:
        """Loads, warms up and measures; returns what the supervisor is told."""
        module, _, name = arguments.backend.partition(":")
        make = getattr(importlib.import_module(module), name)
        model = Model.read(Path(arguments.model_dir), arguments.version)
        own = {"devices": [arguments.gpu], "device": arguments.device}
        settings = self.settings.model_copy(update=own)
        layout, computing = self.memory.layout, self._computing
        scratch = Path(arguments.scratch) if arguments.scratch else None
        computing.backend = backend = make()
        info = backend.load(model, settings, scratch)
        shape = (layout.height, layout.width, 3)
        cap = self.memory.batch_cap[0]
        on_gpu = info.device != "cpu"
        sizes = batch_sizes.sizes(settings, info.device, cap)
        if on_gpu:
            sizes.reverse()  # the largest takes the memory that the others then share
            computing.device = ThreadPoolExecutor(1, "device")
        warm = partial(warmup.warm_both, backend, shape, layout.classes, sizes)
        profile = computing.device.submit(warm).result() if computing.device else warm()
        if on_gpu:
            computing.buckets = list(profile)
            if isinstance(backend, SlotReader) and backend.attach(self.memory.inputs):
                computing.reader = backend
        threads = topology.idle_threads(settings)
        if not on_gpu and threads > settings.intra_op_threads:
            computing.all_cores_backend = all_cores_backend = make()
            changes = {"intra_op_threads": threads, "device": "cpu"}
            all_cores_backend.load(model, settings.model_copy(update=changes), scratch)
            warmup.warm_both(all_cores_backend, shape, layout.classes, [1])
        return {
            "info": asdict(info),
            "gpu_uuid": gpu_uuid(arguments.gpu) if on_gpu else None,
            "batch_ms": profile,
            "batch_cap": cap or warmup.choose_cap(settings, profile),
            "idle_threads": threads if computing.all_cores_backend else None,
        }

    def serve(self) -> None:
        """Takes and computes until it is told to stop."""
        memory, index, computing = self.memory, self.index, self._computing
        for backend in computing.backends:
            backend.trim()
        give_memory_back()
        computing.open(memory.batch_cap[0])  # the first worker's choice holds for all
        under_way: InFlightBatch | None = None
        while (taken := self.queue.take(wait=under_way is None)) is not None:
            under_way = self._run(taken, under_way)
            if under_way:
                self.queue.turn()
                continue
            self.queue.clear()
            memory.seen[index] = time.monotonic()  # before it counts as idle, and as asked long ago
            memory.busy_since[index] = 0
        computing.close()

    def _run(self, taken: list[int], under_way: InFlightBatch | None) -> InFlightBatch | None:
        """Computes what was taken; returns the batch that the device is left to compute meanwhile.

        Suspects run while nothing else does. A queue delay asks for waiting, not for taking early.
        """
        computing = self._computing
        ahead = computing.device is not None and not self.settings.max_queue_delay_us
        batches, suspects = self._sorted(taken)
        for slots in batches:
            begun = computing.begin(slots)
            if under_way:
                computing.finish(under_way)
            under_way = begun
            if not ahead:
                computing.finish(begun)
                under_way = None
        if under_way and (suspects or not batches):
            computing.finish(under_way)
            under_way = None
        for slot in suspects:
            computing.finish(computing.begin([slot]))
        return under_way

    def _sorted(self, taken: list[int]) -> tuple[list[list[int]], list[int]]:
        """What somebody waits for: batches by kind, and suspects, which are to run alone."""
        memory = self.memory
        now = time.monotonic()
        fresh: tuple[list[int], ...] = tuple([] for _ in Signature)
        suspects, over = [], []
        for value in taken:
            slot = slot_of(value)
            if memory.generation[slot] != generation_of(value) or memory.state[slot] != State.QUEUED:
                continue
            if memory.cancelled[slot]:
                memory.state[slot] = State.SKIPPED
                over.append(slot)
            elif memory.deadline[slot] <= now:
                memory.state[slot] = State.EXPIRED
                over.append(slot)
            elif memory.attempts[slot]:
                suspects.append(slot)
            else:
                fresh[memory.kind[slot]].append(slot)
        if over:
            self._computing.report(over)
        return [slots for slots in fresh if slots], suspects


def main() -> None:
    """Loads, reports that it is ready, waits for the word to start, serves."""
    arguments = WorkerArgs(**json.loads(sys.argv[1]))
    die_with_parent(arguments.parent)
    settings = Settings()
    configure_logging(settings)
    worker = Worker(arguments, settings)

    def tell(message: dict[str, Any]) -> None:
        os.write(arguments.status_fd, json.dumps(message).encode() + b"\n")

    try:
        message = worker.load(arguments)
    except ConfigurationError as error:
        tell({"error": str(error)})
        raise SystemExit(1) from error
    except Exception as error:
        logger().exception("the model cannot be loaded")
        tell({"error": f"the model cannot be loaded: {error}"})
        raise SystemExit(1) from error
    if message["info"]["device"] == "cpu":
        cpus.give_way()
    tell(message)
    if os.read(arguments.control_fd, 1):  # nothing: the supervisor has closed it
        worker.serve()


if __name__ == "__main__":
    main()
