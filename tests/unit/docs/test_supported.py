"""docs/status-and-limits.md has every task, backend, device, precision and protocol of the code."""

import re
from itertools import product
from typing import Any, get_args

import pytest

from fastapi_onnx.network import cpu_candidates
from smallplates.models.description import ModelDescription
from smallplates.models.folder import Model
from smallplates.models.task_kinds import KINDS
from smallplates.settings import ROOT, Settings
from tools import tables

BACKENDS = [
    path.parent.name
    for path in sorted(ROOT.glob("*/__init__.py"))
    if re.search("^BACKEND = ", path.read_text(), re.MULTILINE)
]


def values(setting: str) -> set[str]:
    return set(get_args(Settings.model_fields[setting].annotation)) - {"auto"}


def test_every_task_backend_device_and_precision_is_listed() -> None:
    assert sorted(tables.BACKENDS) == BACKENDS
    devices = [tables.supported(kind, backend) for kind, backend in product(KINDS, BACKENDS)]
    assert all(set(each) == values("device") for each in devices)
    listed = {name for each in devices for names in each.values() for name in names}
    assert listed == values("precision") == set(tables.PRECISIONS)


def test_every_protocol_is_listed() -> None:
    of_their_own_port = {name.removesuffix("_port") for name in Settings.model_fields if "_port" in name}
    declared = {"native", *Settings.model_fields["protocols"].default, *of_their_own_port}
    assert set(tables.PROTOCOLS) == declared


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_precisions_on_a_cpu_are_those_of_the_onnx_backend(kind: Any) -> None:
    description = ModelDescription.model_construct(name="model", version="1", task=kind.name, files={})
    candidates = cpu_candidates(Model(ROOT, description), Settings(precision="int8"), "")
    precisions = {candidate.precision for candidate in candidates}
    assert precisions == set(tables.supported(kind, "fastapi_onnx")["cpu"])
