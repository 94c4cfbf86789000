"""Models of texts, planned and computed in this process as the service does, but without slots."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastapi_onnx.backend import OnnxBackend
from smallplates.models.folder import Model
from smallplates.models.task_kinds import kind_of
from smallplates.models.tensors import Array, Item, Signature
from smallplates.settings import Settings
from smallplates.supervision.planner import task_of
from smallplates.tasks.base import Candidate, Fields, Prepared
from smallplates.tasks.text import TOKENS


class ServedTask:
    """A model's task, and the network behind it; ONNX Runtime's unless another backend is given."""

    def __init__(self, folder: Path, backend: Any = None, **settings: Any) -> None:
        self.model = Model.read(folder)
        self.backend = backend or OnnxBackend()
        self.settings = Settings.model_validate({"device": "cpu", **settings})
        declared = self.backend.signature(self.model)
        described = [declared, *self.backend.compare_items(self.model, declared)][-1]
        kind = kind_of(self.model.description.task).load()
        self.signatures: tuple[Signature, ...] = kind.plan(self.model, self.settings, described)
        self.task: Any = task_of(self.model, self.settings, {}, self.signatures)
        self._is_loaded = False

    def answers(self, requests: Sequence[Fields], top_k: int = 1) -> list[list[Candidate]]:
        """Answers requests, whose items share batches as far as the signature lets them."""
        prepared = self.task.preprocess_all(requests)
        assert all(isinstance(each, Prepared) for each in prepared), prepared
        items = [item for each in prepared for item in each.items]
        signature = self.signatures[TOKENS]
        shares = signature.pads and all(spec.equal_count is None for spec in signature.inputs)
        batches = [items] if shares else [[item] for item in items]
        outputs = iter([output for batch in batches for output in self.computed(batch)])
        by_request = [[next(outputs) for _ in each.items] for each in prepared]
        return [
            self.task.postprocess(each, found, top_k)
            for each, found in zip(prepared, by_request, strict=True)
        ]

    def computed(self, items: Sequence[Item]) -> list[list[Array]]:
        """Returns the network's outputs for items, which are padded as the signature says."""
        if not self._is_loaded:
            self.backend.load(self.model, self.settings)
            self._is_loaded = True
        signature = self.signatures[TOKENS]
        width = max(item[0].size for item in items)
        batch: list[Array] = [
            np.stack([np.pad(a, (0, width - a.size), constant_values=spec.padding) for a in column])
            for spec, column in zip(signature.inputs, zip(*items, strict=True), strict=True)
        ]
        return [[*rows] for rows in zip(*self.backend.infer(signature, batch), strict=True)]


def loaded(folder: Path, **settings: Any) -> Any:
    """Returns the task of a folder's model."""
    return ServedTask(folder, **settings).task


def answers(
    folder: Path, requests: Sequence[Fields], top_k: int = 1, **settings: Any
) -> list[list[Candidate]]:
    """Returns what the folder's model answers to requests."""
    return ServedTask(folder, **settings).answers(requests, top_k)
