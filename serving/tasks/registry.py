"""Tasks by the name that model.json gives."""

from serving.engine import describe
from serving.engine.provider import SignaturesOf
from serving.errors import ConfigurationError
from serving.model import IMAGE_CLASSIFICATION, TENSOR, Model
from serving.settings import Settings
from serving.tasks import image_classification
from serving.tasks.base import Task
from serving.tasks.image_classification import ImageClassification
from serving.tasks.tensor import TensorsOnly
from serving.tensors import Signature


def task_of(model: Model, settings: Settings) -> Task:
    """Returns the task of a model. Raises ConfigurationError."""
    if model.description.task == IMAGE_CLASSIFICATION:
        return ImageClassification(model, settings)
    return TensorsOnly(model)


def signatures_of(backend: str) -> SignaturesOf:
    """Returns the function that says how a model is called; `backend` is a `module:class`.

    It may start a process, and raises ConfigurationError.
    """

    def signatures(model: Model) -> tuple[Signature, ...]:
        task = model.description.task
        if task == IMAGE_CLASSIFICATION:
            return image_classification.signatures(model)
        if task == TENSOR:
            return describe.signatures(backend, model)
        raise ConfigurationError(f"there is no task {task}")

    return signatures
