"""What other installed packages add: tasks and protocols, each an entry point."""

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from smallplates.errors import library_errors


def plugins(kind: str, name: str = "") -> Iterator[Any]:
    """Imports the entry points of the group `smallplates.KINDs`, or the one with a name.

    Raises ConfigurationError if one cannot be imported.
    """
    for entry in entry_points(group=f"smallplates.{kind}s"):
        if name in ("", entry.name):
            with library_errors(f"the {kind} {entry.name} cannot be imported"):
                plugin = entry.load()
            yield plugin
