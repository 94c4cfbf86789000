"""Child processes that run a module of this project with the import path of their parent."""

import os
import sys


def command(module: str, *arguments: str) -> list[str]:
    """Returns the command line `python -m MODULE`; files in the current folder cannot shadow modules."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Returns this process's environment with its `sys.path` as PYTHONPATH."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
