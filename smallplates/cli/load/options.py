"""Parsers of command line options that several commands share."""

from typing import TypeVar

import typer

Number = TypeVar("Number", int, float)


def numbers(text: str) -> list[int]:
    """Parses `1,16,64` to three numbers. Raises BadParameter."""
    return parse(text, int, 1)


def milliseconds(text: str) -> list[float]:
    """Parses `0,1.5` to two durations. Raises BadParameter."""
    return parse(text, float, 0)


def parse(text: str, kind: type[Number], least: Number) -> list[Number]:
    """Parses numbers between commas. Raises BadParameter."""
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a list of numbers") from error
    if not least <= min(values) <= max(values) < float("inf"):
        raise typer.BadParameter(f"every number must be at least {least}")
    return values
