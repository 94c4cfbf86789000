"""Small convolutional network for texts, after Kim (2014): `"architecture": "text_cnn"` in model.json.

Each filter looks at a few neighbouring tokens, and only its largest value in the text counts. The
network is called as transformers' are, so that `tokens.py` serves both alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from fastapi_pt.huggingface import LENGTH, ByName
from fastapi_pt.network import fill
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.models.tensors import Signature, TensorSpec

ARCHITECTURE = "text_cnn"
INPUTS = ("input_ids", "attention_mask")
LOGITS = "logits"


@dataclass(frozen=True)
class Config:
    """What transformers' networks tell of themselves, as far as the service asks."""

    vocab_size: int


class TextCnn(nn.Module):
    """Embeddings; their mean, and the largest values of filters of several widths; a linear layer."""

    def __init__(
        self, tokens: int, classes: int, dimensions: int, filters: int, widths: Sequence[int]
    ) -> None:
        """`widths` are the numbers of tokens that filters look at; there are `filters` of each."""
        super().__init__()
        self.config = Config(tokens)
        self.widths = tuple(widths)
        self.embedding = nn.Embedding(tokens, dimensions)
        self.filters = nn.ModuleList(nn.Linear(width * dimensions, filters) for width in widths)
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(len(widths) * filters + dimensions, classes)

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> "TextCnn":
        """Builds a network of the sizes that its weights have, and fills it.

        Raises ConfigurationError for other weights.
        """
        try:
            tokens, dimensions = weights["embedding.weight"].shape
            shapes = [v.shape for k, v in weights.items() if k.startswith("filters.") and v.ndim > 1]
            widths = [columns // dimensions for _, columns in shapes]
            network = cls(tokens, len(weights["classifier.bias"]), dimensions, shapes[0][0], widths)
        except (KeyError, ValueError, IndexError) as error:
            raise ConfigurationError(f"the weights are not those of {ARCHITECTURE}") from error
        fill(network, weights)
        network.eval()
        return network

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, return_dict: bool = True
    ) -> dict[str, Tensor]:
        """Computes logits [N, classes] of tokens [N, T]; the mask [N, T] is 0 where there is none.

        Convolutions are products of matrices, which ONNX Runtime's dynamic quantisation takes.
        """
        assert return_dict  # noqa: S101 as transformers' networks
        mask = attention_mask[:, :, None].float()
        embedded = functional.dropout(self.embedding(input_ids), 0.3, self.training) * mask
        length = input_ids.shape[1]
        found = [embedded.sum(1) / mask.sum(1).clamp(min=1)]
        for width, layer in zip(self.widths, self.filters, strict=True):
            padded = functional.pad(embedded, (0, 0, width // 2, width - 1 - width // 2))
            windows = torch.cat([padded[:, i : i + length] for i in range(width)], 2)
            found.append((functional.relu(layer(windows)) * mask).amax(1))
        return {LOGITS: self.classifier(self.dropout(torch.cat(found, 1)))}


def is_described(model: Model) -> bool:
    """Returns whether model.json names this architecture."""
    return model.description.architecture == ARCHITECTURE


def token_network(model: Model) -> ByName:
    """Reads the network of a model, to be called as `signature_of` says. Raises ConfigurationError."""
    path = model.file("model.safetensors")
    try:
        network = TextCnn.of(load_file(path))
    except (SafetensorError, ConfigurationError) as error:
        raise ConfigurationError(f"{path} does not fit {ARCHITECTURE}: {error}") from error
    return ByName(network, INPUTS, [LOGITS])


def signature_of(model: Model) -> Signature:
    """Returns how the network is called, without its weights. Raises ConfigurationError without them."""
    model.file("model.safetensors")
    return Signature(
        "tensor",
        tuple(TensorSpec(name, "int64", (LENGTH,)) for name in INPUTS),
        (TensorSpec(LOGITS, "float32", (len(model.labels),)),),
        limits={LENGTH: model.description.limit(LENGTH)},
        failure_is_client_error=True,
    )
