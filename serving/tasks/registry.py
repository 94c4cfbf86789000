"""Tasks of models, and what the workers run for each; `serving/task_kinds.py` has the table."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from serving.engine import describe
from serving.engine.provider import EnginePlan, Planner
from serving.errors import ConfigurationError
from serving.model import Model
from serving.settings import Settings
from serving.task_kinds import PYTHON, TaskKind, kind_of
from serving.tasks.base import Task, TaskParts
from serving.tensors import Signature


def task_class(kind: TaskKind) -> type[Task]:
    """Imports the class of a kind of tasks: a model of images needs no tokenisers."""
    module, _, name = kind.task.partition(":")
    class_: type[Task] = getattr(import_module(module), name)
    return class_


def task_of(
    model: Model, settings: Settings, schemas: Mapping[str, Any], signatures: Sequence[Signature]
) -> Task:
    """Returns the task of a model; the workers report `schemas`, the planner made `signatures`.

    Raises ConfigurationError.
    """
    parts = TaskParts(model, settings, tuple(signatures), dict(schemas))
    return task_class(kind_of(model.description.task))(parts)


def planner(backend: str, settings: Settings) -> Planner:
    """Returns the function that says what serves a model; `backend` is a `module:class`.

    It may start a process, and raises ConfigurationError.
    """

    def plan(model: Model) -> EnginePlan:
        name = model.description.task
        kind = kind_of(name)
        if kind is PYTHON and ":" not in name:
            raise ConfigurationError(f"there is no task {name}")
        graph = describe.signatures(backend, model) if kind.plain_graph else ()
        signatures = task_class(kind).plan(TaskParts(model, settings, graph))
        return EnginePlan(kind.backend or backend, signatures)

    return plan
