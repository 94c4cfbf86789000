"""Every notebook, from top to bottom, on small numbers, against services that it starts itself."""

import os
from pathlib import Path
from unittest.mock import patch

import nbformat
import pytest
from nbclient import NotebookClient

from benchmarks import triton
from tests.servers import ROOT, UNMEASURED

pytestmark = [pytest.mark.slow, pytest.mark.torch]

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Jupyter's own
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path) -> None:
    if "triton" in path.stem and not (triton.TRITON.exists() and triton.PERF.exists()):
        pytest.skip("no Triton: make notebook-triton sets one up")
    notebook = nbformat.read(path, as_version=4)
    quick = {"NOTEBOOK_QUICK": "1", "TQDM_DISABLE": "1", **UNMEASURED}
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    )
    with patch.dict(os.environ, quick):
        client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.output_type == "error" for output in outputs)


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 4
