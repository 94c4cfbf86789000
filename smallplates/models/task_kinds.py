"""Table of the kinds of tasks, consulted wherever something depends on a model's kind of task.

No task's class is imported here, only when a model of that kind is served.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from smallplates.models.comparison import Compare, directions, probabilities, relative
from smallplates.plugins import plugins

IMAGE_CLASSIFICATION, TENSOR = "image-classification", "tensor"
TEXT_CLASSIFICATION, QUESTION_ANSWERING = "text-classification", "question-answering"
EMBEDDING, RANKING = "embedding", "ranking"
TOKEN_CLASSIFICATION, ZERO_SHOT = "token-classification", "zero-shot-classification"


@dataclass(frozen=True)
class TaskKind:
    """What a kind of task needs, and what serves it."""

    name: str
    """Value of `task` in model.json."""

    task: str
    """Subclass of `tasks.base.Task`, as `module:Class`."""

    backend: str | None = None
    """Backend in the workers, as `module:Class`; None means the service's own backend."""

    needs: tuple[Literal["labels", "image", "text", "embedding"], ...] = ()
    """Fields that model.json must have."""

    head: str | None = None
    """End of the architecture's name in transformers' config.json."""

    file: str | None = None
    """File in an export that may mean this kind whatever the architecture is."""

    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Outputs of a plain graph that the task reads, and their axes after the batch: `token`, `label`, or
    another whose size is fixed, such as `hidden` for transformers' `hidden_size`."""

    is_pair: bool = False
    """Whether an input is a pair of texts."""

    plain_graph: bool = False
    """Whether the graph is called as its file declares it; model.json need not list such a file."""

    compare: Compare | None = None
    """Compares the outputs in other precisions and runtimes; None: by size, and without int8."""

    def load(self) -> Any:
        """Imports the task's class, when it is needed: image models need no tokenisers, for example."""
        return pkgutil.resolve_name(self.task)


KINDS = (
    TaskKind(
        IMAGE_CLASSIFICATION,
        "smallplates.tasks.image_classification:ImageClassification",
        needs=("labels", "image"),
        head="ForImageClassification",
        compare=probabilities,
    ),
    TaskKind(
        EMBEDDING,
        "smallplates.tasks.embedding:Embedding",
        needs=("text", "embedding"),
        head="Model",
        file="modules.json",
        outputs={"sentence_embedding": ("hidden",)},
        plain_graph=True,
        compare=directions,
    ),
    TaskKind(
        RANKING,
        "smallplates.tasks.ranking:Ranking",
        needs=("text",),
        head="ForSequenceClassification",
        outputs={"logits": ("score",)},
        is_pair=True,
        plain_graph=True,
        compare=relative,
    ),
    TaskKind(
        ZERO_SHOT,
        "smallplates.tasks.zero_shot_classification:ZeroShotClassification",
        needs=("labels", "text"),
        head="ForSequenceClassification",
        outputs={"logits": ("label",)},
        is_pair=True,
        plain_graph=True,
        compare=relative,  # requests compare the logits of different pairs
    ),
    TaskKind(
        TEXT_CLASSIFICATION,
        "smallplates.tasks.text_classification:TextClassification",
        needs=("labels", "text"),
        head="ForSequenceClassification",
        outputs={"logits": ("label",)},
        plain_graph=True,
        compare=probabilities,
    ),
    TaskKind(
        TOKEN_CLASSIFICATION,
        "smallplates.tasks.token_classification:TokenClassification",
        needs=("labels", "text"),
        head="ForTokenClassification",
        outputs={"logits": ("token", "label")},
        plain_graph=True,
        compare=probabilities,
    ),
    TaskKind(
        QUESTION_ANSWERING,
        "smallplates.tasks.question_answering:QuestionAnswering",
        needs=("text",),
        head="ForQuestionAnswering",
        outputs={"start_logits": ("token",), "end_logits": ("token",)},
        is_pair=True,
        plain_graph=True,
        compare=probabilities,
    ),
    TaskKind(TENSOR, "smallplates.tasks.tensor:TensorsOnly", plain_graph=True),
)
PYTHON = TaskKind(
    "module:Class",
    "smallplates.tasks.python.web:PythonRequests",
    backend="smallplates.tasks.python.backend:PythonBackend",
)
TEACHER = "WithTeacher"
"""End of an architecture's name whose head has a second classifier; its logits are the mean of both."""

HEADS = tuple(dict.fromkeys(kind.head for kind in KINDS if kind.head))


def kind_of(task: str) -> TaskKind:
    """Returns the kind of a task by its name in model.json; all other names mean Python tasks.

    The kind may be the row of another package. Raises ConfigurationError if that cannot be imported.
    """
    own = (kind for kind in KINDS if kind.name == task)
    return next(chain(own, plugins("task", task)), PYTHON)


def kinds_of_export(folder: Path, architecture: str) -> Iterator[TaskKind]:
    """Generates the kinds of tasks that an export may be for, by its files and by its network's head."""
    for kind in chain(KINDS, plugins("task")):
        network = architecture.removesuffix(TEACHER)
        has_head = kind.head is not None and network.endswith(kind.head)
        if has_head or (kind.file is not None and (folder / kind.file).is_file()):
            yield kind
