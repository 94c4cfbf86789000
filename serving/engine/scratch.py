"""A folder for what processes of one service share; it is gone when what made it ends.

The folder's name holds the process that made it, so that the next start clears away what a killed one
left behind. Without a place to write there is none, and every worker keeps its own copy.
"""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "serving-scratch-"


def create(prefix: str = PREFIX, parent: Path | None = None) -> Path | None:
    """A new private folder, by default among the temporary ones; None where nothing can be written."""
    try:
        parent = parent or Path(tempfile.gettempdir())
        sweep(parent, prefix)
        return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
    except OSError:
        return None


def remove(folder: Path | None) -> None:
    """What is mapped stays usable until it is unmapped."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path, prefix: str = PREFIX) -> None:
    """Removes this user's folders whose process no longer runs."""
    for folder in parent.glob(f"{prefix}*"):
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdecimal() and folder.lstat().st_uid == os.getuid() and not is_alive(int(pid)):
                remove(folder)


def is_alive(pid: int) -> bool:
    """Whether such a process exists, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
