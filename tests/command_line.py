"""Runs the project's commands in this process."""

import typer
from typer.testing import CliRunner


def run(app: typer.Typer, *arguments: object, code: int = 0) -> str:
    """Runs a command, checks its exit code, and returns its output."""
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output
