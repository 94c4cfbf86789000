"""Finds a model's task and what its workers run; `smallplates/models/task_kinds.py` has the table."""

from collections.abc import Mapping, Sequence
from itertools import chain
from threading import Event
from typing import Any

from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.models.task_kinds import KINDS, PYTHON, kind_of
from smallplates.models.tensors import Signature
from smallplates.plugins import plugins
from smallplates.settings import Settings
from smallplates.supervision import describe
from smallplates.supervision.registry import EnginePlan, Planner
from smallplates.tasks.base import Task


def task_of(
    model: Model, settings: Settings, schemas: Mapping[str, Any], signatures: Sequence[Signature]
) -> Task:
    """Returns a model's task; `schemas` come from the workers, `signatures` from the planner.

    Raises ConfigurationError.
    """
    task: Task = kind_of(model.description.task).load()(model, settings, signatures, schemas)
    return task


def planner(backend: str, settings: Settings) -> Planner:
    """Returns a function that plans a model's engine; `backend` is a `module:class`.

    The function may start a process. It raises ConfigurationError, also if its event is set meanwhile.
    """

    def plan(model: Model, ending: Event | None = None) -> EnginePlan:
        name = model.description.task
        kind = kind_of(name)
        if kind is PYTHON and ":" not in name:
            known = ", ".join(each.name for each in chain(KINDS, plugins("task")))
            raise ConfigurationError(f"there is no task {name}; known are {known}, and module:Class")
        graph = [describe.signature(backend, model, ending)] if kind.plain_graph else []
        return EnginePlan(kind.backend or backend, kind.load().plan(model, settings, *graph))

    return plan
