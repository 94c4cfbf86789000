"""The examples of docs/your-own-python.md do what stands there."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from smallplates.cli import task_check as check
from smallplates.models.folder import Model
from smallplates.settings import ROOT, Settings
from smallplates.tasks.python.backend import PythonBackend, Status
from smallplates.tasks.python.web import PythonRequests
from smallplates.worker import warmup
from tests.conftest import HAS_TORCH

DOCUMENT = (ROOT / "docs" / "your-own-python.md").read_text()


def block(begins: str) -> str:
    """The block of code behind the line that begins so."""
    match = re.search(rf"^{re.escape(begins)}.*?^```(?:python|json)\n(.*?)^```$", DOCUMENT, re.M | re.S)
    assert match
    return match[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, from which Python imports; what is imported from there is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) == str(tmp_path / f"{name}.py"):
            del sys.modules[name]


def answers(name: str, *requests: object) -> list[object]:
    """Warms the model of this name up, and asks it for a batch."""
    model = Model.read(Path("models") / name)
    backend, settings = PythonBackend(), Settings(device="cpu", intra_op_threads=1)
    backend.load(model, settings)
    (signature,) = PythonRequests.plan(model, settings)
    assert warmup.warm_up(backend, [signature], [1, 2, 4], settings).batch_cap in (1, 2, 4)
    backend.trim()
    data = [json.dumps(request).encode() for request in requests]
    width = max(map(len, data))
    batch = np.frombuffer(b"".join(text.ljust(width) for text in data), np.uint8)
    statuses, texts = backend.infer(signature, [batch.reshape(len(data), width)])
    return [
        json.loads(text.tobytes()) if status == Status.ANSWER else text.tobytes().decode().rstrip()
        for status, text in zip(statuses, texts, strict=True)
    ]


def test_the_smallest_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "distance.py").write_text(block("`distance.py`"))
    version = folder / "models" / "distance" / "1"
    version.mkdir(parents=True)
    (version.parent / "model.json").write_text(block("The model's folder names the class"))
    np.save(version / "points.npy", [[0.0, 0.0], [1.2, 0.0]])
    near, far, wrong = answers("distance", {"point": [0.6, 2]}, {"point": [3.6, 4]}, {"point": [1]})
    assert (near, far) == ({"distance": 2.0}, {"distance": 5.0})
    assert wrong == "a point has 2 coordinates"
    command = re.search(r"smallplates check (\S+) --model-dir (\S+) --request '(.*)'$", DOCUMENT, re.M)
    assert command
    assert check.run(command[1], Path(command[2]), command[3]) == 0
    printed = re.sub(r"[\d.]+ ms|python \S+", "", capsys.readouterr().out)
    promised = DOCUMENT[command.end() + 1 :].partition("```")[0]
    assert re.sub(r"\d\.\d+}", "}", printed) == re.sub(
        r"\d\.\d+}", "}", re.sub(r"[\d.]+ ms|python \S+", "", promised)
    )


@pytest.mark.slow
def test_scikit_learn(folder: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    (folder / "iris.py").write_text(block("`iris.py`"))
    exec(compile(block("This trains its pipeline"), "train", "exec"), {})  # noqa: S102 it is ours
    first, other, wrong = answers(
        "iris",
        {"features": [5.1, 3.5, 1.4, 0.2]},
        {"features": [6.3, 3.3, 6.0, 2.5]},
        {"features": [1]},
    )
    promised = json.loads(re.findall(r'^\{"label".*\}$', DOCUMENT, re.M)[0])
    assert first == {
        "label": promised["label"],
        "probability": pytest.approx(promised["probability"], abs=0.001),
    }
    assert isinstance(other, dict)
    assert other["label"] == "virginica"
    assert isinstance(wrong, str)
    assert wrong.startswith("features: List should have at least 4 items")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_pytorch(folder: Path) -> None:
    import torch

    (folder / "mood.py").write_text(block("`mood.py`"))
    version = folder / "models" / "mood" / "1"
    version.mkdir(parents=True)
    description = {"name": "mood", "version": "1", "task": "mood:Mood", "files": {}}
    (version.parent / "model.json").write_text(json.dumps(description))
    import mood  # type: ignore[import-not-found]

    torch.manual_seed(1)
    torch.save(mood.Network().state_dict(), version / "network.pt")
    texts = ["good", "a much longer text", "good"]
    together = answers("mood", *({"text": text} for text in texts))
    alone = [answers("mood", {"text": text})[0] for text in texts]
    assert together[0] == together[2] != together[1]
    for batched, other in zip(together, alone, strict=True):
        assert batched == pytest.approx(other, abs=1e-6)
