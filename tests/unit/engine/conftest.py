"""A small layout of the shared memory, and a mapping of it."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from smallplates.engine.memory import Memory, SlotLayout
from smallplates.engine.worker_args import WorkerArgs
from smallplates.tasks.image_classification import image_signatures

LAYOUT = SlotLayout(
    slots=12, web_processes=3, workers=2, max_batch=8, signatures=image_signatures((5, 7), 11)
)
IMAGES = LAYOUT.signatures[0]


@pytest.fixture
def memory() -> Iterator[Memory]:
    mapping = Memory.create(LAYOUT)
    yield mapping
    mapping.close()


def worker_args(memory: Memory, **own: Any) -> WorkerArgs:
    """The arguments of a worker of this process, with some of its own."""
    usual: dict[str, Any] = {
        "index": 0,
        "parent": os.getpid(),
        "backend": "no:Backend",
        "model": "",
        "model_dir": "",
        "version": "1",
        "scratch": None,
        "gpu": 0,
        "settings": {"device": "cpu"},
        "layout": memory.layout,
        "memory_fd": memory.fd,
        "counts_fd": memory.counts.fd,
        "lifeline_fd": 0,
    }
    return WorkerArgs(**usual | own)
