"""Parsers of command line options that several commands share."""

import typer


def numbers(text: str) -> list[int]:
    """Parses `1,16,64` to three numbers. Raises BadParameter."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a list of numbers") from error
    if min(found) < 1:
        raise typer.BadParameter("every number must be at least 1")
    return found
