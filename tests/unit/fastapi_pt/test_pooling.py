"""`fastapi_pt.pooling`: vectors of texts in padded batches, and linear layers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fastapi_pt.pooling import VECTOR, Vectors, pool
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from tests import exports

pytestmark = [pytest.mark.slow, pytest.mark.torch]

LENGTHS = (5, 1, 3)
POOLED = {
    "cls": lambda states: states[0],
    "max": lambda states: states.amax(0),
    "mean": lambda states: states.mean(0),
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / len(states) ** 0.5,
    "weightedmean": lambda states: (
        torch.arange(1.0, len(states) + 1) @ states / sum(range(len(states) + 1))
    ),
    "lasttoken": lambda states: states[-1],
}


class Encoder(nn.Module):
    """Answers the same states for every batch, as transformers' networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)
        self.states = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, return_dict: bool) -> dict[str, Tensor]:
        assert return_dict
        assert attention_mask.shape == input_ids.shape
        return {"last_hidden_state": self.states}


@pytest.mark.parametrize("pooling", ["mean", "mean_sqrt_len_tokens"])
def test_the_sum_over_a_long_text_does_not_overflow_in_half_precision(
    tmp_path: Path, pooling: str
) -> None:
    model = Model.read(exports.encoded(tmp_path / "made", exports.word_piece(), {}))
    pipeline = model.description.embedding_pipeline.model_copy(update={"pooling": pooling})
    model.description = model.description.model_copy(update={"embedding": pipeline})
    encoder = Encoder()
    encoder.states = torch.full((1, 4096, 4), 20.0, dtype=torch.float16)
    ids = torch.ones(1, 4096, dtype=torch.int64)
    expected = torch.full((1, 4), 20.0 if pooling == "mean" else 20.0 * 64, dtype=torch.float16)
    torch.testing.assert_close(Vectors(encoder, model).half()(ids, ids)[VECTOR], expected)


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_padding_does_not_count(pooling: str, dtype: torch.dtype) -> None:
    states = Encoder().states.to(dtype)
    mask = (torch.arange(5) < torch.tensor(LENGTHS)[:, None]).long()
    expected = [
        POOLED[pooling](row[:length].float()) for row, length in zip(states, LENGTHS, strict=True)
    ]
    vectors = pool(pooling, states, mask).float()
    torch.testing.assert_close(
        vectors, torch.stack(expected), rtol=0, atol=1e-6 if dtype.itemsize > 2 else 0.01
    )


def test_several_poolings_follow_each_other(tmp_path: Path) -> None:
    model = Model.read(
        exports.modules(
            exports.encoded(tmp_path / "made", exports.word_piece(), {}),
            ("Pooling", {"pooling_mode": ["max", "cls"]}),
        )
    )
    encoder, ids = Encoder(), torch.zeros(3, 5, dtype=torch.long)
    expected = torch.cat([encoder.states.amax(1), encoder.states[:, 0]], 1)
    torch.testing.assert_close(Vectors(encoder, model)(ids)[VECTOR], expected)


def saved(folder: Path, **dense: Any) -> Path:
    """The folder of an export with a linear layer; only the vectors' part of it is read."""
    made = exports.encoded(folder / "made", exports.word_piece(), {})
    config = {"in_features": 4, "out_features": 3, "activation_function": "torch.nn.Tanh", **dense}
    mean = ("Pooling", {"pooling_mode_mean_tokens": True})
    exports.modules(made, mean, ("Dense", config))
    tensors = {"linear.weight": torch.arange(12.0).view(3, 4) / 12, "linear.bias": torch.ones(3)}
    save_file(tensors, made / "2_Dense" / "model.safetensors")
    return made


def test_linear_layers_follow(tmp_path: Path) -> None:
    folder, encoder = saved(tmp_path), Encoder()
    vectors = Vectors(encoder, Model.read(folder))
    assert encoder.config.use_cache is False
    ids = torch.zeros(3, 5, dtype=torch.long)
    means = encoder.states.mean(1)
    expected = torch.tanh(means @ (torch.arange(12.0).view(3, 4) / 12).T + 1)
    torch.testing.assert_close(vectors(ids)[VECTOR], expected)


def test_layers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model = Model.read(saved(tmp_path, out_features=5))
    with pytest.raises(
        ConfigurationError, match=r"2_Dense/model\.safetensors cannot be read as a linear layer"
    ):
        Vectors(Encoder(), model)
