"""A table in Markdown; for `chapters.py`, `gpu_report.py` and `docs/tables.py`."""

from collections.abc import Sequence


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))
