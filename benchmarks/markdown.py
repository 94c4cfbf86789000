"""Markdown tables from rows of JSON, for `chapters.py`, the reports and `tools/tables.py`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

Content = dict[str, Any]
"""Object in JSON, such as a results file: command, machine, results."""

Cell = str | Callable[[Content], object]
"""Text of a cell: a template with the fields of a row, as for `str.format`, or a function of the row."""


class Template(Formatter):
    """Formats like `str.format`, but a field that is None is empty."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Formats one field."""
        return "" if value is None else str(super().format_field(value, format_spec))


def cell(template: Cell, row: Content) -> str:
    """Returns the text of a cell."""
    return Template().vformat(template, (), row) if isinstance(template, str) else str(template(row))


def table(rows: Iterable[Content], columns: Mapping[str, Cell]) -> str:
    """Returns a table with a line for each row; `columns` has the heading of each column."""
    lines = [[cell(template, row) for template in columns.values()] for row in rows]
    return markdown(list(columns), lines)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table with the first column aligned left, all others right."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def groups(rows: Iterable[Content], *keys: str) -> dict[tuple[Any, ...], list[Content]]:
    """Returns the rows that have the same values of `keys`, by these values."""
    by_values: dict[tuple[Any, ...], list[Content]] = {}
    for row in rows:
        by_values.setdefault(tuple(row[key] for key in keys), []).append(row)
    return by_values


def fastest(rows: Iterable[Content], *keys: str) -> list[Content]:
    """Returns the row with the highest rate of each group."""
    return [max(g, key=lambda row: float(row["per_second"])) for g in groups(rows, *keys).values()]
