"""Child processes that run a module of this project and import what their parent imports."""

import os
import sys


def command(module: str, *arguments: str) -> list[str]:
    """Returns the command line of `python -m MODULE`; nothing in the current folder shadows MODULE."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Returns this process's environment, with its `sys.path` as PYTHONPATH."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
