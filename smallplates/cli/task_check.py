"""`smallplates check my_module:MyTask`: loads a Python task, asks it, and says what is wrong."""

import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

from smallplates.errors import ConfigurationError, summary
from smallplates.models.description import ModelDescription
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.python.backend import PythonBackend, Status, TaskError
from smallplates.tasks.python.web import PythonRequests


def run(task: str, model_dir: Path | None, request: str | None) -> int:
    """Checks a task, `module:Class`, with a JSON request or its example; returns the exit status."""
    with tempfile.TemporaryDirectory() as empty:
        try:
            model = Model(
                Path(empty), ModelDescription(name="check", version="1", files={}, task="tensor")
            )
            if model_dir:
                model = Model.read(model_dir)
            model.description = model.description.model_copy(update={"task": task})
            check(model, Settings.read(), request)
        except (ConfigurationError, TaskError) as error:
            print(error, file=sys.stderr)  # noqa: T201
            return 1
        except BaseException as error:  # whatever the class raises
            print(f"{summary(error)} {place(error, task)}", file=sys.stderr)  # noqa: T201
            return 1
    return 0


def check(model: Model, settings: Settings, request: str | None) -> None:
    """Loads the task; calls it with one request, then with a batch of two. Raises what it raises."""
    backend, started = PythonBackend(), time.perf_counter()
    info = backend.load(model, settings)
    print(f"{info.backend} on {info.device}: loaded in {since(started)}", flush=True)  # noqa: T201
    backend.trim()
    data = request.encode() if request else backend.example
    if not data:
        raise ConfigurationError(
            "there is no request to send: give the class an example, or use --request"
        )
    (signature,) = PythonRequests.plan(model, settings)
    for count in (1, 2):
        started = time.perf_counter()
        batch = np.frombuffer(data * count, np.uint8).reshape(count, -1)
        statuses, answers = backend.infer(signature, [batch])
        text = answers[0].tobytes().decode().rstrip()
        if status := Status(int(statuses[0])):
            code = 422 if status is Status.NOT_OF_TYPE else 400
            raise TaskError(f"the request is refused with {code}: {text}")
        print(f"{count} in a batch, {since(started)}: {text}", flush=True)  # noqa: T201


def since(started: float) -> str:
    """Returns the time since `started`, such as `12.3 ms`."""
    return f"{(time.perf_counter() - started) * 1000:.1f} ms"


def place(error: BaseException, task: str) -> str:
    """Returns the last line of the task's module in the traceback, or else the last line of all."""
    file = getattr(sys.modules.get(task.partition(":")[0]), "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
    return f"({frame.filename}, line {frame.lineno})"
