"""Tasks by the name that model.json gives, and what the workers run for each."""

from collections.abc import Mapping, Sequence
from typing import Any

from serving.engine import describe
from serving.engine.provider import EnginePlan, Planner
from serving.errors import ConfigurationError
from serving.model import Model
from serving.settings import Settings
from serving.task_kinds import IMAGE_CLASSIFICATION, QUESTION_ANSWERING, TENSOR, TEXT_CLASSIFICATION
from serving.tasks import image_classification
from serving.tasks.base import Task
from serving.tasks.image_classification import ImageClassification
from serving.tasks.python import backend as python
from serving.tasks.python.web import PythonRequests
from serving.tasks.tensor import TensorsOnly
from serving.tensors import Signature


def task_of(
    model: Model, settings: Settings, profile: Mapping[str, Any], signatures: Sequence[Signature]
) -> Task:
    """Returns the task of a model; `profile` is the supervisor's, `signatures` are the planner's.

    Raises ConfigurationError.
    """
    if model.description.task == IMAGE_CLASSIFICATION:
        return ImageClassification(model, settings)
    if model.description.task == TENSOR:
        return TensorsOnly(model)
    if model.description.task == TEXT_CLASSIFICATION:
        from serving.tasks.text_classification import TextClassification  # it loads tokenizers

        return TextClassification(model, settings, signatures[0])
    if model.description.task == QUESTION_ANSWERING:
        from serving.tasks.question_answering import QuestionAnswering

        return QuestionAnswering(model, settings, signatures[0])
    return PythonRequests(model, settings, profile["schemas"])


def planner(backend: str, settings: Settings) -> Planner:
    """Returns the function that says what serves a model; `backend` is a `module:class`.

    It may start a process, and raises ConfigurationError.
    """

    def plan(model: Model) -> EnginePlan:
        task = model.description.task
        if task == IMAGE_CLASSIFICATION:
            return EnginePlan(backend, image_classification.signatures(model))
        if task == TENSOR:
            return EnginePlan(backend, describe.signatures(backend, model))
        if task == TEXT_CLASSIFICATION:
            from serving.tasks import text_classification

            (graph,) = describe.signatures(backend, model)
            return EnginePlan(backend, text_classification.signatures(model, graph))
        if task == QUESTION_ANSWERING:
            from serving.tasks import question_answering

            (graph,) = describe.signatures(backend, model)
            return EnginePlan(backend, question_answering.signatures(model, graph))
        if ":" in task:
            return EnginePlan(python.BACKEND, python.signatures(model, settings))
        raise ConfigurationError(f"there is no task {task}")

    return plan
