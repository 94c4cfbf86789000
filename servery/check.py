"""`servery check`: a Python task, without a service."""

import faulthandler
from pathlib import Path
from typing import Annotated

import typer

from serving.tasks.python import check

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    task: Annotated[str, typer.Argument(metavar="MODULE:CLASS", help="The task's class.")],
    model_dir: Annotated[
        Path | None, typer.Option(help="Model folder; by default an empty one.")
    ] = None,
    request: Annotated[
        str | None, typer.Option(help="Request to send, as JSON, instead of the class's example.")
    ] = None,
) -> None:
    """Loads a Python task, sends it one request and a batch of two, and reports errors."""
    faulthandler.enable()  # a crash of the task names its line
    raise typer.Exit(check.run(task, model_dir, request))
