"""Signature of a model file that only its backend can read: `python -m
smallplates.supervision.describe`.

A separate process imports the backend and reads the file, so that the web processes and the supervisor
never import an inference library and a file that crashes the process does not take the service down.
Called before an engine is created.

The process first writes the signature that the file declares. It then computes made-up items and writes
the signature to serve whenever it knows more. If it crashes or takes too long, the last one is served.
"""

import contextlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from pydantic import TypeAdapter

from smallplates.engine.backend import GraphReader
from smallplates.errors import ConfigurationError
from smallplates.logging import logger
from smallplates.models.folder import Model
from smallplates.models.tensors import NOT_COMPARED, Signature
from smallplates.supervision.worker_process import LOAD_TIMEOUT_S, STARTS_IF_KILLED, describe_exit
from smallplates.system import python
from smallplates.system.pdeathsig import die_with_parent

SIGNATURE = TypeAdapter(Signature)
LOOK_S = 0.2
"""Seconds between two looks whether the service is to end."""

COMPARE_S, MORE_S, TEXTS_S = 1.0, 5.0, 30.0
"""Time limits in seconds for opening the graph and computing made-up items, further ones, or texts.

Importing PyTorch is part of it: with ten seconds, a busy start left a text model without padding.
"""


def signature(backend: str, model: Model, ending: Event | None = None) -> Signature:
    """Returns the signature that a backend (`module:class`) finds in a model's file.

    Takes about two seconds. Raises ConfigurationError if the backend rejects the file, if reading it
    crashes or hangs the process, or if `ending` is set meanwhile.
    """
    name = model.description.name
    arguments = [backend, str(model.path), model.description.version, name, str(os.getpid())]
    try:
        for _ in range(STARTS_IF_KILLED):
            process = subprocess.Popen(  # noqa: S603 our own module
                python.command("smallplates.supervision.describe", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env=python.environment(),
            )
            output = output_of(process, name, ending)
            if output or process.returncode != -signal.SIGKILL:
                break
    except OSError as error:
        raise ConfigurationError(f"no process can be started to read {name}: {error}") from error
    answers = [line for line in output.splitlines() if line.startswith(b"{")]
    if not answers:
        raise ConfigurationError(f"the process that reads {name} {describe_exit(process.returncode)}")
    answer = json.loads(answers[-1])
    if "error" in answer:
        raise ConfigurationError(answer["error"])
    result = SIGNATURE.validate_python(answer["signature"])
    if len(answers) == 1 and process.returncode and result.batch_size != 1:
        reason = f"the process {describe_exit(process.returncode)}"
        if process.returncode == -signal.SIGALRM:
            reason = "it takes too long"
        result = replace(result, batch_note=f"{NOT_COMPARED}: {reason}")
    if result.batch_note:
        logger().info("batching", model=name, batched=result.is_batched, reason=result.batch_note)
    return result


def output_of(process: subprocess.Popen[bytes], name: str, ending: Event | None) -> bytes:
    """Returns what a process writes until it ends.

    Kills it and raises ConfigurationError if that takes too long, or if `ending` is set meanwhile.
    """
    end = time.monotonic() + LOAD_TIMEOUT_S
    with process:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=LOOK_S)[0]
            if time.monotonic() > end or (ending and ending.is_set()):
                process.kill()
                raise ConfigurationError(f"{name} was not read within {LOAD_TIMEOUT_S} seconds")


def main(backend: str, folder: str, version: str, name: str, parent: str) -> None:
    """Writes lines of JSON: the declared signature, then those to serve; or an error."""
    die_with_parent(int(parent))
    reader = pkgutil.resolve_name(backend)()
    try:
        if not isinstance(reader, GraphReader):
            kind = type(reader).__name__
            raise ConfigurationError(f"{kind} cannot serve ONNX graphs; use fastapi_onnx")
        model = Model.read(Path(folder), version, name)
        declaration = reader.signature(model)
        write(signature=SIGNATURE.dump_python(declaration, mode="json"))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel kills us even inside a library call
        signal.setitimer(signal.ITIMER_REAL, TEXTS_S if model.description.text else COMPARE_S)
        for better in reader.compare_items(model, declaration):
            write(signature=SIGNATURE.dump_python(better, mode="json"))
            signal.setitimer(signal.ITIMER_REAL, TEXTS_S if model.description.text else MORE_S)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except ConfigurationError as error:
        write(error=str(error))


def write(**answer: Any) -> None:
    """Writes a line of JSON and flushes it, so that a later crash cannot lose it."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
