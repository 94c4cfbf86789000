"""Names of models while the models change."""

import threading
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import ValidationError

from smallplates.errors import NotFoundError
from smallplates.models.description import ModelDescription
from smallplates.models.tensors import Signature
from smallplates.web.api import catalog
from smallplates.web.api.catalog import CatalogEntry, ModelCatalog


@pytest.mark.parametrize("place", [1, 2])
def test_a_thread_that_is_late_does_not_bring_back_a_model(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """The thread, which began before the change, ends before the n-th thing that is remembered after."""
    old, new = Mock(), Mock()
    begun, goes_on = threading.Event(), threading.Event()

    def entries_of(model: Mock) -> list[CatalogEntry]:
        if model is old:
            begun.set()
            assert goes_on.wait(60)
        return [CatalogEntry("model", "1", False, 0, (), (), model)]

    class Watched(ModelCatalog):
        """Lets the thread end before the main thread sets an attribute for the n-th time."""

        left = 0

        def __setattr__(self, name: str, value: Any) -> None:
            if name != "left" and threading.current_thread() is threading.main_thread():
                self.left -= 1
                if self.left == 0:
                    goes_on.set()
                    thread.join()
            super().__setattr__(name, value)

    monkeypatch.setattr(catalog, "entries_of", entries_of)
    service = Mock(models={"model": old}, settings=Mock(aliases={}))
    watched = Watched(service)
    thread = threading.Thread(target=lambda: watched.entries)
    thread.start()
    assert begun.wait(60)
    service.models = {"model": new}
    watched.left = place
    assert watched.entries["model"].model is new
    goes_on.set()
    thread.join()
    assert watched.entries["model"].model is new


def test_a_version_has_labels() -> None:
    description = ModelDescription(
        name="own", version="1", task="tensor", version_labels={"v0.1.0": "1", "2.1": "2", "old": "1"}
    )
    model: Any = Mock(description=description)
    model.signatures = [Signature("graph", (), ())]
    model.task = Mock(request_signature=None, tensor_signature=0)
    found = ModelCatalog(Mock(models={"own": model}, settings=Mock(aliases={"also": "own"})))
    for name in ("own", "also"):
        assert {found.find(name, version).version for version in (None, "1", "v0.1.0", "old")} == {"1"}
        for version in ("2", "2.1", "v0.2.0", "", "V0.1.0"):
            with pytest.raises(NotFoundError, match=f"version '{version}' of {name} is not served"):
                found.find(name, version)


@pytest.mark.parametrize("labels", [{"2": "1"}, {"": "1"}, {"a/b": "1"}, {"v1": "one"}, {"v1": "0"}])
def test_labels_are_no_numbers_and_versions_are(labels: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        ModelDescription(name="own", version="1", task="tensor", version_labels=labels)
