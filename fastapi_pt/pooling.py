"""Encoder with pooling and linear layers: a text's vector leaves it, not one for each token.

Used by `huggingface.py`.
"""

from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.models.sentence_transformers import read_dense

VECTOR, STATES = "sentence_embedding", "last_hidden_state"


class Vectors(nn.Module):
    """Encoder that returns VECTOR [N, size]."""

    def __init__(self, network: nn.Module, model: Model) -> None:
        """Reads the linear layers. Raises ConfigurationError."""
        super().__init__()
        pipeline = model.description.embedding_pipeline
        self.network, self.poolings = network, pipeline.pooling.split("+")
        config: Any = network.config
        config.use_cache = False  # of decoders: their keys and values are outputs, too
        self.config = config
        self.linear = nn.Sequential(*(linear(model, place) for place in pipeline.dense))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        return_dict: bool = True,
        **others: Tensor,
    ) -> dict[str, Tensor]:
        """Computes the vectors of tokens [N, T]; the mask [N, T] is 0 for padding."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        states = self.network(
            input_ids=input_ids, attention_mask=mask, return_dict=return_dict, **others
        )[STATES]
        vectors = [pool(pooling, states.float(), mask) for pooling in self.poolings]
        return {VECTOR: self.linear(torch.cat(vectors, 1).to(states.dtype))}


def pool(pooling: str, states: Tensor, attention_mask: Tensor) -> Tensor:
    """Reduces states [N, T, size] to [N, size], as sentence-transformers does.

    In float16 the sum over a long text overflows, so `Vectors` calls it in float32.
    """
    if pooling == "cls":
        return states[:, 0]
    mask = attention_mask[:, :, None].to(states.dtype)
    if pooling == "max":
        return states.masked_fill(mask == 0, torch.finfo(states.dtype).min).amax(1)
    if pooling == "lasttoken":
        return (states * (mask - functional.pad(mask[:, 1:], (0, 0, 0, 1)))).sum(1)
    if pooling == "weightedmean":
        mask = mask * mask.cumsum(1)  # later tokens count more
    count = mask.sum(1).clamp(min=1e-9)
    return (states * mask).sum(1) / (count.sqrt() if pooling == "mean_sqrt_len_tokens" else count)


def linear(model: Model, place: str) -> nn.Module:
    """Reads a linear layer of sentence-transformers. Raises ConfigurationError."""
    path, dense = read_dense(model.folder / place)
    layer = nn.Linear(dense.in_features, dense.out_features, dense.bias)
    try:
        layer.load_state_dict({k.removeprefix("linear."): v.float() for k, v in load_file(path).items()})
    except (SafetensorError, RuntimeError) as error:  # the latter if tensors have other shapes
        raise ConfigurationError(f"{path} cannot be read as a linear layer: {error}") from error
    activation: nn.Module = getattr(nn, dense.activation_function)()
    return nn.Sequential(layer, activation)
