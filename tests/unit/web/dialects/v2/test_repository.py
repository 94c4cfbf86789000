"""The models that are listed, and what a client may ask for when it loads one."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from smallplates.errors import InvalidRequestError, UnauthorizedError
from smallplates.models.description import ModelDescription
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.web.api.catalog import CatalogEntry
from smallplates.web.dialects.v2.repository import Repository, version_to_load
from smallplates.web.inference.service import InferenceService

TWO = {"version_policy": {"specific": {"versions": [2]}}}


def version_of(**parameters: Any) -> str | None:
    if isinstance(parameters.get("config"), dict):
        parameters["config"] = json.dumps(parameters["config"])
    return version_to_load(json.dumps({"parameters": parameters}).encode())


@pytest.mark.parametrize("body", [b"", b"{}", b'{"parameters": null}', b'{"parameters": {}}'])
def test_without_a_version_it_is_the_one_in_model_json(body: bytes) -> None:
    assert version_to_load(body) is None


@pytest.mark.parametrize(
    ("parameters", "version"),
    [
        ({"version": "3"}, "3"),
        ({"version": None, "config": None}, None),
        ({"config": {}}, None),
        ({"config": {"version_policy": None}}, None),
        ({"config": TWO}, "2"),
        ({"config": TWO, "version": "2"}, "2"),
        ({"config": {}, "version": "2"}, "2"),
    ],
)
def test_what_is_applied(parameters: dict[str, Any], version: str | None) -> None:
    assert version_of(**parameters) == version


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"config": {"max_batch_size": 8}}, "max_batch_size"),
        ({"config": TWO | {"instance_group": [{"count": 2}]}}, "instance_group"),
        ({"config": {"parameters": {}}}, "parameters"),
        ({"config": {"version_policy": {"latest": {"num_versions": 1}}}}, "latest"),
        ({"config": {"version_policy": {"all": {}}}}, "all"),
        ({"config": {"version_policy": {"specific": {"versions": [1], "x": 1}}}}, "x"),
        ({"config": {"version_policy": {"specific": {"versions": [1, 2]}}}}, "versions"),
        ({"config": TWO, "version": "3"}, "version is 3"),
        ({"file:1/model.onnx": "AAAA"}, "file:1/model.onnx"),
        ({"config": TWO, "file:1/model.onnx": "AAAA"}, "file:1/model.onnx"),
    ],
)
def test_what_is_not_applied_is_refused_by_its_name(parameters: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        version_of(**parameters)


def test_a_long_name_is_not_sent_back() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        version_of(config={"x" * 100_000: 1})
    assert len(refused.value.detail) < 1000


@pytest.mark.anyio
async def test_a_model_may_be_unloaded_while_it_is_listed(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
    model = Model(tmp_path, ModelDescription(name="late", version="2", task="tensor"))
    served = Mock(description=model.description, handle=Mock(model=model), asleep="")
    listed = {"late": CatalogEntry("late", "2", True, 0, (), (), served)}
    service = InferenceService(Settings(), Mock(shares_ports=False), {})
    rows = await Repository(service, Mock(entries=listed)).index(False, "")
    assert [(row["version"], row["state"]) for row in rows] == [("2", "READY"), ("1", "UNAVAILABLE")]


def test_a_load_with_the_api_key_asks_for_the_admin_key() -> None:
    settings = Settings(api_key="guest", admin_key="admin")
    repository = Repository(Mock(InferenceService, settings=settings), Mock())
    repository.check_allowed("Bearer admin")
    with pytest.raises(
        UnauthorizedError, match="a valid admin key is needed: Authorization: Bearer KEY"
    ):
        repository.check_allowed("Bearer guest")
