"""Temporary folder shared by processes of one service; created by the supervisor and the cluster.

The folder's name contains the id of the process that created it, so that the next start can remove the
folders of killed processes. If no folder can be created, every worker keeps its own copy of the data.
"""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "serving-scratch-"


def create(prefix: str = PREFIX, parent: Path | None = None) -> Path | None:
    """Creates a private folder, by default in the temporary folder; returns None if not writable."""
    try:
        parent = parent or Path(tempfile.gettempdir())
        sweep(parent, prefix)
        return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
    except OSError:
        return None


def remove(folder: Path | None) -> None:
    """Removes the folder; mapped files stay usable until they are unmapped."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path, prefix: str = PREFIX) -> None:
    """Removes this user's folders if their processes no longer run."""
    for folder in parent.glob(f"{prefix}*"):
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdecimal() and folder.lstat().st_uid == os.getuid() and not is_alive(int(pid)):
                remove(folder)


def is_alive(pid: int) -> bool:
    """Returns whether a process with this id exists, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
