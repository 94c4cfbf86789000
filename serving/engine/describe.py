"""Signatures of a model that only its backend can read: `python -m serving.engine.describe`.

A process of its own imports the backend and reads the file: the web processes and the supervisor import
no inference library, and a file that ends the process does not end the service. Called before an engine
is made.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

from pydantic import TypeAdapter

from serving.backends.base import GraphReader
from serving.engine.worker_process import describe_exit
from serving.errors import ConfigurationError
from serving.model import Model
from serving.system.pdeathsig import die_with_parent
from serving.tensors import Signature

SIGNATURES = TypeAdapter(tuple[Signature, ...])
TIMEOUT_S = 120


def signatures(backend: str, model: Model) -> tuple[Signature, ...]:
    """Returns the signatures that a backend, `module:class`, finds in a model's file; takes a second.

    Raises ConfigurationError, with the backend's reason, or if the file ends or stops the process.
    """
    arguments = [backend, str(model.path), model.description.version, str(os.getpid())]
    name = model.description.name
    try:
        done = subprocess.run(  # noqa: S603 our own module
            [sys.executable, "-m", "serving.engine.describe", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"{name} was not read within {TIMEOUT_S} seconds") from error
    except OSError as error:
        raise ConfigurationError(f"no process can be started to read {name}: {error}") from error
    if done.returncode:
        raise ConfigurationError(f"the process that reads {name} {describe_exit(done.returncode)}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise ConfigurationError(answer["error"])
    return SIGNATURES.validate_python(answer["signatures"])


def main(backend: str, folder: str, version: str, parent: str) -> None:
    """Writes the signatures, or why there are none, as a line of JSON."""
    die_with_parent(int(parent))
    module, _, name = backend.partition(":")
    reader = getattr(importlib.import_module(module), name)()
    try:
        if not isinstance(reader, GraphReader):
            raise ConfigurationError(f"{name} serves no graph in tensor form; fastapi_onnx does")
        signatures = reader.signatures(Model.read(Path(folder), version))
        answer = {"signatures": SIGNATURES.dump_python(signatures, mode="json")}
    except ConfigurationError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
