"""Blocks of code in README.md, CONTRIBUTING.md and docs/: which ones run, and what the others need.

A block of shell or Python is run by `tests/e2e/test_document_blocks.py`, unless the line above it is a
note of what it needs, such as `*Needs Docker.*`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.servers import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted(ROOT.glob("f*/README.md"))
SHELL, PYTHON = ("", "sh", "bash", "shell", "console"), "python"
DATA = ("json", "yaml", "text", "toml", "diff", "protobuf")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code."""

    place: str
    language: str
    text: str

    note: str
    """What it needs; empty: it runs."""

    served: str
    """Folder of the model that the service must have, of a comment above; empty: what runs already."""

    file: str
    """Name of the Python file that holds it, the last one in the paragraph above; empty: none."""


def blocks(path: Path) -> Iterator[Block]:
    """Yields the blocks of a page."""
    text = path.read_text()
    for match in BLOCK.finditer(text):
        before = text[: match.start()]
        above = before.rstrip().rpartition("\n")[2]
        note = re.fullmatch(r"\*Needs (.+)\.\*", above)
        served = re.fullmatch(r"<!-- served: (\S+) -->", above)
        paragraph = re.split(r"\n\n|^```\n", before, flags=re.MULTILINE)[-1]
        *_, file = (None, *re.finditer(r"`(\w+\.py)`", paragraph))
        place = f"{path.name}:{before.count(chr(10)) + 1}"
        found = [group[1] if group else "" for group in (note, served, file)]
        yield Block(place, match[1], match[2], *found)
