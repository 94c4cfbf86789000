"""`smallplates check`: a Python task, without a service.

The class runs in a process of its own, because it may start threads and processes that never end, hang,
crash, or end its process.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from ctypes import c_int
from pathlib import Path
from typing import Annotated, Any

import typer

from smallplates.cli import task_check
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.supervision.worker_process import describe_exit
from smallplates.system.pdeathsig import die_with_parent

UNFINISHED = -1

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    task: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CLASS",
            help="The task's class, or a model folder whose model.json names it.",
        ),
    ],
    model_dir: Annotated[
        Path | None, typer.Option(help="Model folder; by default an empty one.")
    ] = None,
    request: Annotated[
        str | None, typer.Option(help="Request to send, as JSON, instead of the class's example.")
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(min=0.001, max=24 * 3600, help="Time limit for the whole check, in seconds.")
    ] = 60.0,
) -> None:
    """Loads a Python task, sends it one request and a batch of two, and reports errors."""
    if Path(task).exists() and not task.endswith(".py"):
        model_dir = model_dir or Path(task)
        place, task = task, Model.read(Path(task)).description.task
        if ":" not in task:
            raise ConfigurationError(f"{place} names no Python class: run smallplates serve {place}")
    context = multiprocessing.get_context("fork")  # takes over what is imported, and `sys.path`
    status = context.RawValue(c_int, UNFINISHED)
    arguments = (os.getpid(), status, task, model_dir, request)
    process = context.Process(target=run, args=arguments)
    process.start()
    try:
        end = time.monotonic() + timeout_s
        while (code := process.exitcode) is None and time.monotonic() < end:
            time.sleep(0.01)  # `join` with a timeout would also wait for the processes of the class
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)  # and the processes that the class has started
    process.join()
    if status.value != UNFINISHED:
        raise typer.Exit(status.value)
    if code is None:
        raise ConfigurationError(f"{task} was not checked within {timeout_s:g} seconds (--timeout-s)")
    raise ConfigurationError(f"the process of {task} {describe_exit(code)} during the check")


def run(parent: int, status: Any, task: str, model_dir: Path | None, request: str | None) -> None:
    """Checks the task and ends this process, whatever the class has left running; sets `status`."""
    os.setsid()  # a process group, without the terminal's Ctrl-C
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent(parent)
    faulthandler.enable()  # a crash of the task names its line
    try:
        status.value = task_check.run(task, model_dir, request)
        sys.stdout.flush()  # what the class has printed
    finally:
        os._exit(0)
