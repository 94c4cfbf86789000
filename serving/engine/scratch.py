"""Temporary folder that the processes of one service share; made by the supervisor and the cluster.

The folder's name holds the id of the process that made it, so that the next start removes the folders of
killed processes. Without a writable place there is no folder, and every worker keeps its own copy.
"""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "serving-scratch-"


def create(prefix: str = PREFIX, parent: Path | None = None) -> Path | None:
    """Makes a private folder, by default in the temporary one; returns None if that is not writable."""
    try:
        parent = parent or Path(tempfile.gettempdir())
        sweep(parent, prefix)
        return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
    except OSError:
        return None


def remove(folder: Path | None) -> None:
    """Removes the folder; files that are mapped stay usable until they are unmapped."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path, prefix: str = PREFIX) -> None:
    """Removes this user's folders whose processes no longer run."""
    for folder in parent.glob(f"{prefix}*"):
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdecimal() and folder.lstat().st_uid == os.getuid() and not is_alive(int(pid)):
                remove(folder)


def is_alive(pid: int) -> bool:
    """Returns whether a process exists, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
