"""The traced forms of a PyTorch network on a CPU."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fastapi_pt.backend import TorchBackend
from fastapi_pt.cpu import FORM, LAYOUTS, PLAIN, optimised
from serving.model import Model
from serving.settings import Settings
from serving.tasks.image_classification import compute_logits


def test_a_network_that_onednn_lacks_a_layer_for_is_served_in_the_plain_form(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(6), nn.Flatten()).eval()
    served = optimised(network, (7, 7), tmp_path)
    photos = torch.rand(2, 3, 7, 7)
    with torch.inference_mode():
        torch.testing.assert_close(served(photos), network(photos))
    assert json.loads((tmp_path / FORM).read_text())[0] == PLAIN


@pytest.mark.parametrize("form", [PLAIN, LAYOUTS])
def test_numbers_that_are_not_finite_are_no_class(tmp_path: Path, form: str) -> None:
    settings = Settings(device="cpu", precision="fp32")
    (tmp_path / FORM).write_text(json.dumps([form, "as the test says"]))
    backend = TorchBackend()
    backend.load(Model.read(settings.model_dir), settings, tmp_path)
    batch = np.zeros((4, 3, 224, 224), np.float32)
    batch[1, 0, 0, 0] = np.inf
    batch[2, 0, 0, 0] = np.nan
    batch[3, :, ::2], batch[3, :, 1::2] = 3e38, -3e38
    assert np.isfinite(compute_logits(backend, batch)).all(axis=1).tolist() == [
        True,
        False,
        False,
        False,
    ]
    backend.close()
