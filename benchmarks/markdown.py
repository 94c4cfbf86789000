"""Markdown table for `chapters.py`, the reports and `tools/tables.py`."""

from collections.abc import Sequence
from typing import Any

Content = dict[str, Any]
"""Results file: command, machine, results."""


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table with the first column aligned left, all others right."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))
