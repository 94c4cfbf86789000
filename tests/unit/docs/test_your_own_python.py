"""The network in docs/your-own-python.md answers alike in batches of any texts.

`make test-docs` runs the page's blocks.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from smallplates.models.folder import Model
from smallplates.settings import ROOT, Settings
from smallplates.tasks.python.backend import PythonBackend, Status
from smallplates.tasks.python.web import PythonRequests
from smallplates.worker import warmup
from tests.conftest import HAS_TORCH

DOCUMENT = (ROOT / "docs" / "your-own-python.md").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(tmp_path)
    (code,) = re.findall(r"^`mood\.py` .*?^```python\n(.*?)^```$", DOCUMENT, re.M | re.S)
    (tmp_path / "mood.py").write_text(code)
    import mood  # type: ignore[import-not-found]

    folder = tmp_path / "models" / "mood"
    (folder / "1").mkdir(parents=True)
    description = {"name": "mood", "version": "1", "task": "mood:Mood", "files": {}}
    (folder / "model.json").write_text(json.dumps(description))
    torch.manual_seed(1)
    torch.save(mood.Network().state_dict(), folder / "1" / "network.pt")
    model, settings = Model.read(folder), Settings(device="cpu", intra_op_threads=1)
    backend = PythonBackend()
    backend.load(model, settings)
    (signature,) = PythonRequests.plan(model, settings)
    assert warmup.warm_up(backend, [signature], [1, 2, 4], settings).batch_cap in (1, 2, 4)
    backend.trim()

    def answers(*texts: str) -> list[object]:
        data = [json.dumps({"text": text}).encode().ljust(60) for text in texts]
        batch = np.frombuffer(b"".join(data), np.uint8).reshape(len(data), 60)
        statuses, found = backend.infer(signature, [batch])
        assert set(statuses.tolist()) == {Status.ANSWER}
        return [json.loads(text.tobytes()) for text in found]

    texts = ["good", "a much longer text", "good"]
    together = answers(*texts)
    assert together[0] == together[2] != together[1]
    for batched, text in zip(together, texts, strict=True):
        assert batched == pytest.approx(answers(text)[0], abs=1e-6)
