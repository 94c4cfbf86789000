"""Names of models while the models change."""

import threading
from typing import Any
from unittest.mock import Mock

import pytest

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
