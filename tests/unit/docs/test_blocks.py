"""Blocks in the documents are of a language that is known; `make test-docs` runs them."""

from pathlib import Path

import pytest

from tests.blocks import DATA, PAGES, PYTHON, SHELL, blocks


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_block_runs_or_is_data_or_says_what_it_needs(path: Path) -> None:
    assert path.read_text().count("\n```") % 2 == 0
    for block in blocks(path):
        assert block.language in (*SHELL, PYTHON, *DATA), block.place
        assert not (block.note and block.language in DATA), f"{block.place} has a note, but is no code"
