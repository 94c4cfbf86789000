"""Child processes that run a module of this project with the import path of their parent, and the
streams that every process inherits.
"""

import getpass
import os
import sys
from pathlib import Path


def command(module: str, *arguments: str) -> list[str]:
    """Returns the command line `python -m MODULE`; files in the current folder cannot shadow modules."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Returns this process's environment with its `sys.path` as PYTHONPATH.

    A user without a name, as in many containers, is called by its number: torch asks for the name.
    """
    more = {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    try:
        getpass.getuser()
    except (KeyError, OSError):  # the latter since Python 3.13
        more["LOGNAME"] = str(os.getuid())
    return {**os.environ, **more}


def fill_standard_streams() -> None:
    """Opens /dev/null for closed standard streams; otherwise other files would take their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # in this order each gets its own number, the lowest free one
            stream = Path(os.devnull).open(mode)  # noqa: SIM115 until this process ends
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
