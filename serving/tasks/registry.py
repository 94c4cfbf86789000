"""Tasks by the name that model.json gives."""

from serving.model import IMAGE_CLASSIFICATION, Model
from serving.settings import Settings
from serving.tasks.base import Task
from serving.tasks.image_classification import ImageClassification
from serving.tasks.tensor import TensorsOnly


def task_of(model: Model, settings: Settings) -> Task:
    """Returns the task of a model. Raises ConfigurationError."""
    if model.description.task == IMAGE_CLASSIFICATION:
        return ImageClassification(model, settings)
    return TensorsOnly(model)
