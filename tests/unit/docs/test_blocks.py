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


def test_what_stands_above_a_block_is_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`net.py` is\na network:\n```python\nx = 1\n```\nThen:\n```\nls\n```\n"
        "<!-- served: models/a -->\n```\ncurl\n```\n\n*Needs Docker.*\n```\ndocker ps\n```\n"
    )
    network, then, served, noted = blocks(page)
    assert (network.language, network.file, network.text) == ("python", "net.py", "x = 1\n")
    assert (then.place, then.file, then.note, then.served) == ("page.md:7", "", "", "")
    assert served.served == "models/a"
    assert noted.note == "Docker"
