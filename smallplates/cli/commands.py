"""The commands. Each is imported when it is called: some need packages of an extra, or take a second."""

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from smallplates import __version__, cli
from smallplates.errors import ConfigurationError
from smallplates.extras import missing_extra

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
HELP = ["--help", "-h"]


class Group(TyperGroup):
    """Commands one of which must be named; says so where a model is named instead."""

    advice = "is not a command; to serve a model, type: smallplates serve {}"

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # Any: click's, which Typer brings
        """Returns the command that the arguments begin with, and the others."""
        if args[0] not in self.commands and ("/" in args[0] or Path(args[0]).exists()):
            ctx.fail(f"{args[0]} {self.advice.format(args[0])}")
        return super().resolve_command(ctx, args)


@dataclass(frozen=True)
class Command:
    """One command, as `smallplates --help` has it."""

    help: str

    target: str
    """Its Typer application, `module:attribute`."""

    def load(self) -> Any:  # Any: a click command, which Typer brings in a form of its own
        """Imports it. Raises ModuleNotFoundError where an extra is missing."""
        module, _, attribute = self.target.partition(":")
        return typer.main.get_command(getattr(import_module(module), attribute))

    def run(self, name: str, arguments: Sequence[str]) -> None:
        """Runs it with these arguments; ends with its exit code."""
        try:
            self.load()(args=list(arguments), prog_name=f"smallplates {name}", help_option_names=HELP)
        except ConfigurationError as error:
            reason = str(error)
        except OSError as error:
            reason = f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")
        except ModuleNotFoundError as error:
            if (words := missing_extra(error.name or "")) is None:
                raise
            reason = words
        typer.echo(f"smallplates {name}: {reason}", err=True)
        raise typer.Exit(1)


COMMANDS = {
    "serve": Command(
        "Serves models with an API and a web page, until Ctrl-C.", "smallplates.cli.serve:app"
    ),
    "ask": Command("Sends requests to a running service.", "smallplates.cli.ask:app"),
    "check": Command("Tests a Python task without a service.", "smallplates.cli.check:app"),
    "export": Command(
        "Creates a model folder from weights or an ONNX file.", "smallplates.cli.export:app"
    ),
    "load": Command(
        "Measures latency and throughput of a running server.", "smallplates.cli.load.command:app"
    ),
    "quantize": Command("Adds int8 files to a model folder.", "smallplates.cli.export:quantise_app"),
}

app = typer.Typer(
    cls=Group,
    context_settings={"help_option_names": HELP},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def show_version(is_asked_for: bool) -> None:
    """Prints the version and ends, if the option is given."""
    if is_asked_for:
        typer.echo(f"smallplates {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit."),
]


@app.callback(help=cli.__doc__)
def group(version: Version = False) -> None:
    """Has the commands below it, even if there is only one."""


def add(name: str, command: Command, hidden: bool = False) -> None:
    """Adds a command that hands its arguments on, `--help` among them."""

    @app.command(name, help=command.help, hidden=hidden, context_settings=PASSED_ON)
    def run(context: typer.Context) -> None:
        with contextlib.suppress(FileNotFoundError):  # of a folder that has been removed
            if (folder := os.getcwd()) not in sys.path:  # noqa: PTH109 sys.path has text
                sys.path.append(folder)  # Python tasks lie there; last, it shadows nothing
        command.run(name, context.args)


for _name, _command in COMMANDS.items():
    add(_name, _command)
add("quantise", COMMANDS["quantize"], hidden=True)
