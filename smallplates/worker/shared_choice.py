"""A choice shared by all instances of a model: the first one measures, the others wait and read."""

import contextlib
import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def shared_choice(scratch: Path | None, name: str, choose: Callable[[], T]) -> T:
    """Returns what the first caller's `choose` returned, any JSON value.

    `scratch` is a folder that belongs to one model. If it is None or not writable, every caller chooses
    for itself.
    """
    if scratch is None:
        return choose()
    path = scratch / name
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # disk full, or the folder was removed
            lock = stack.enter_context(path.with_suffix(".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError, ValueError):
            value: T = json.loads(path.read_text())
            return value
        value = choose()
        with contextlib.suppress(OSError):
            path.write_text(json.dumps(value))
        return value
