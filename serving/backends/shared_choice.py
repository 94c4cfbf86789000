"""Choice that all instances of a model share: the first one measures, the others wait and read."""

import contextlib
import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def shared_choice(scratch: Path | None, name: str, choose: Callable[[], T]) -> T:
    """Returns what the first caller's `choose` returned: text, or lists and dictionaries of it.

    `scratch` is a folder that belongs to one model; without one, or where it cannot be written, every
    caller chooses for itself.
    """
    if scratch is None:
        return choose()
    path = scratch / name
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # a full disk, or a folder that was removed
            lock = held.enter_context(path.with_suffix(".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError, ValueError):
            kept: T = json.loads(path.read_text())
            return kept
        chosen = choose()
        with contextlib.suppress(OSError):
            path.write_text(json.dumps(chosen))
        return chosen
