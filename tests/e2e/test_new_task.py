"""The tables of the documents have a task that another package adds; `test_tasks.py` serves it."""

import pytest

from smallplates.models.task_kinds import KINDS
from tests.fake.token_count import ROW
from tools import tables


def test_the_tables_of_the_documents_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "KINDS", (*KINDS, ROW))
    assert "| [`token-count`](#token-count) | `text` |" in tables.needs_table()
    assert "| `token-count` | `fastapi_onnx` | int8, bf16, fp32 | fp32 |" in tables.supported_table()
    head, _, native, *_ = tables.protocols_table().splitlines()
    assert "`token-count`" in head
    assert native.endswith("| requests | no | requests | requests |")
