"""The traced forms of a PyTorch network on a CPU."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fastapi_pt.backend import CHOICE, LAYOUTS, PLAIN, TorchBackend, optimised_for_cpu, settle_choice
from serving.model import Model
from serving.settings import Settings


def test_a_network_that_onednn_lacks_a_layer_for_is_served_in_the_plain_form(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(6), nn.Flatten()).eval()
    served = optimised_for_cpu(network, (7, 7), tmp_path)
    photos = torch.rand(2, 3, 7, 7)
    with torch.inference_mode():
        torch.testing.assert_close(served(photos), network(photos))
    assert (tmp_path / CHOICE).read_text() == PLAIN


def test_the_first_pytorch_instance_chooses_the_traced_form_for_all(tmp_path: Path) -> None:
    assert settle_choice(None, PLAIN) == PLAIN
    assert settle_choice(tmp_path, LAYOUTS) == LAYOUTS
    assert settle_choice(tmp_path, PLAIN) == LAYOUTS
    settings = Settings(device="cpu")
    TorchBackend().load(Model.read(settings.model_dir), settings, tmp_path)
    assert (tmp_path / CHOICE).read_text() == LAYOUTS
    assert [file.name for file in tmp_path.iterdir()] == [CHOICE]


@pytest.mark.parametrize("form", [PLAIN, LAYOUTS])
def test_numbers_that_are_not_finite_are_no_class(tmp_path: Path, form: str) -> None:
    settings = Settings(device="cpu")
    (tmp_path / CHOICE).write_text(form)
    backend = TorchBackend()
    backend.load(Model.read(settings.model_dir), settings, tmp_path)
    batch = np.zeros((4, 3, 224, 224), np.float32)
    batch[1, 0, 0, 0] = np.inf
    batch[2, 0, 0, 0] = np.nan
    batch[3, :, ::2], batch[3, :, 1::2] = 3e38, -3e38
    assert np.isfinite(backend.infer_tensor(batch)).all(axis=1).tolist() == [True, False, False, False]
    backend.close()
