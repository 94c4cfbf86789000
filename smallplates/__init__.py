"""Serves small models. Its classes are imported when they are first used.

`import smallplates` loads nothing but this file, so that a client loads nothing of the service.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smallplates.client import AsyncClient as AsyncClient
    from smallplates.client import Client as Client
    from smallplates.tasks.python.task import PythonTask as PythonTask
else:
    MODULES = {
        "AsyncClient": "smallplates.client",
        "Client": "smallplates.client",
        "PythonTask": "smallplates.tasks.python.task",
    }

    def __getattr__(name: str) -> type:
        """Imports a class of `MODULES`."""
        if name not in MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(MODULES[name]), name)


__version__ = "0.3.0"
