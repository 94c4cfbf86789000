"""The outputs of the notebooks: all or none, of the shipped models, without the machine's folders."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import limit
from smallplates.cli.load.payloads import SAMPLE
from smallplates.models.folder import file_sha256
from smallplates.settings import ROOT
from smallplates.tasks.image_classification import compute_logits

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FOOD = ROOT / "models" / "food11"
OTHER_PRECISIONS = 0.03  # a service may have chosen another precision than fp32
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path: Path) -> list[dict[str, Any]]:  # Any: JSON
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:  # Any: JSON
    """The text that a cell has printed."""
    texts = [output.get("text") or output["data"]["text/plain"] for output in cell["outputs"]]
    return "".join("".join(text) for text in texts)


@cache
def shipped_probabilities() -> dict[str, float]:
    """The photo model's answer to the notebooks' photo, in fp32, by label."""
    experiments = limit.Limit(FOOD, SAMPLE.read_bytes(), "cpu", 0, 1)
    backend, _ = limit.load(limit.Instances("fastapi_onnx", 1, 1, "fp32"), experiments.model, "cpu")
    logits = compute_logits(backend, experiments.decoder.decode(experiments.photo)[np.newaxis])[0]
    backend.close()
    exponentials = np.exp(logits - logits.max())
    labels = experiments.model.description.labels
    return dict(zip(labels, (exponentials / exponentials.sum()).tolist(), strict=True))


@every_notebook
def test_all_cells_have_run_or_none_has(path: Path) -> None:
    """A notebook that has changed has no outputs until `make notebooks` has run it."""
    assert len({bool(cell["execution_count"]) for cell in code_cells(path)}) == 1
    assert not any(
        output["output_type"] == "error" for cell in code_cells(path) for output in cell["outputs"]
    )
    text = path.read_text()
    assert str(ROOT) not in text
    assert "/site-packages/" not in text


@every_notebook
def test_outputs_are_a_full_run_s_and_of_the_shipped_model(path: Path) -> None:
    first, *others = (printed(cell) for cell in code_cells(path))
    if not (first or any(others)):
        return
    assert re.match(r"commit \w+(-dirty)?, \d+ cores of .+, Python 3\S+\n(\S+ \S+, )+", first)
    assert "quick" not in first
    assert "running service" not in first
    assert "image/png" in path.read_text()
    text = "\n".join([first, *others])
    digests = re.findall(r"^(.*)SHA-256 of \S+ ([0-9a-f]{64})$", text, re.MULTILINE)
    assert digests
    for model, digest in digests:
        assert "food11" not in model or digest == file_sha256(FOOD / "model.json"), "make notebooks"
    labels = "|".join(re.escape(label) for label in shipped_probabilities())
    for label, number in re.findall(rf"({labels})\W+(?:probability\W+)?(\d\.\d+)", text):
        expected = pytest.approx(shipped_probabilities()[label], abs=OTHER_PRECISIONS)
        assert float(number) == expected, "make notebooks"
