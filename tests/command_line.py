"""Runs the project's commands in this process."""

import typer
from typer.testing import CliRunner


def run(app: typer.Typer, *arguments: object, code: int = 0, typed: str | None = None) -> str:
    """Runs a command, which reads what is `typed`; checks its exit code, and returns its output."""
    words = [str(each) for each in arguments]
    result = CliRunner().invoke(app, words, input=typed, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output
