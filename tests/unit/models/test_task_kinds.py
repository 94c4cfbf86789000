"""`smallplates.models.task_kinds`: rows of other packages; `tests/e2e/test_tasks.py` serves one."""

import sys
from pathlib import Path

import pytest

from smallplates.errors import ConfigurationError
from smallplates.models.task_kinds import PYTHON, kind_of, kinds_of_export
from tests.fake.token_count import ROW, install


def test_an_entry_point_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kind_of("token-count") is PYTHON
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert kind_of("token-count") is ROW
    assert list(kinds_of_export(tmp_path, "BertForTokenCount")) == [ROW]
    assert list(kinds_of_export(tmp_path, "BertForMaskedLM")) == []
    monkeypatch.setitem(sys.modules, "tests.fake.token_count", None)
    with pytest.raises(ConfigurationError, match="the task token-count cannot be imported"):
        kind_of("token-count")
