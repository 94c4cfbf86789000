"""Temporary folder shared by processes of one service; created by the supervisor and the cluster.

The process that created a folder holds a lock on it, so that the next start can remove the folders of
killed processes. A process id would not do: in a container, the next process has the same one. If no
folder can be created, every worker keeps its own copy of the data.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX, OWNER = "serving-scratch-", "owner"
"""Start of a folder's name, and the file in it whose lock belongs to the folder's process alone."""


@contextlib.contextmanager
def folder(prefix: str = PREFIX, parent: Path | None = None) -> Iterator[Path | None]:
    """Provides a private folder, by default in the temporary folder; None if that is not writable.

    The folder is removed afterwards; mapped files stay usable until they are unmapped.
    """
    try:
        parent = parent or Path(tempfile.gettempdir())
        sweep(parent, prefix)
        hidden = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=parent))  # until it is locked
        lock = (hidden / OWNER).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = hidden.rename(parent / hidden.name[1:])
    except OSError:
        yield None
        return
    with lock, contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, path, ignore_errors=True)
        yield path


def sweep(parent: Path, prefix: str = PREFIX) -> None:
    """Removes this user's folders whose lock no process holds; leaves those without a lock."""
    for path in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                with (path / OWNER).open("r+") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
