"""Answers of a backend in this process, without a service."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastapi_onnx.backend import OnnxBackend
from fastapi_pt.backend import TorchBackend
from smallplates.models.folder import Model
from smallplates.models.task_kinds import kind_of
from smallplates.models.tensors import Array, Item
from smallplates.settings import Settings
from smallplates.supervision.planner import task_of
from smallplates.tasks.base import Candidate, Fields, Prepared

BACKENDS: dict[str, Any] = {"fastapi_onnx": OnnxBackend, "fastapi_pt": TorchBackend}
Answers = Callable[[Sequence[Fields]], list[list[Candidate]]]


def loaded(backend: str, folder: Path, **options: str) -> Answers:
    """What answers requests; their items share batches as far as the signature lets them."""
    model = Model.read(folder)
    network: Any = BACKENDS[backend]()
    settings = Settings.model_validate({"device": "cpu", "long_text": "truncate", **options})
    declared = network.signature(model)
    described = [declared, *network.compare_items(model, declared)][-1]
    signatures = kind_of(model.description.task).load().plan(model, settings, described)
    task = task_of(model, settings, {}, signatures)
    network.load(model, settings)

    def computed(items: Sequence[Item]) -> list[list[Array]]:
        width = max(item[0].size for item in items)
        batch: list[Array] = [
            np.stack([np.pad(a, (0, width - a.size), constant_values=spec.padding) for a in column])
            for spec, column in zip(signatures[0].inputs, zip(*items, strict=True), strict=True)
        ]
        return [[*rows] for rows in zip(*network.infer(signatures[0], batch), strict=True)]

    def answers(requests: Sequence[Fields]) -> list[list[Candidate]]:
        prepared = [each for each in task.preprocess_all(requests) if isinstance(each, Prepared)]
        assert len(prepared) == len(requests)
        items = [item for each in prepared for item in each.items]
        is_free = all(spec.equal_count is None for spec in signatures[0].inputs)
        batches = [items] if signatures[0].pads and is_free else [[item] for item in items]
        outputs = iter([output for batch in batches for output in computed(batch)])
        by_request = [[next(outputs) for _ in each.items] for each in prepared]
        return [
            task.postprocess(each, found, len(items))
            for each, found in zip(prepared, by_request, strict=True)
        ]

    return answers
