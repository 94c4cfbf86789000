"""The network behind a model description: a torchvision architecture, its input reduced first."""

from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import get_model, list_models

from serving.errors import ConfigurationError


class Reduce(nn.Module):
    """[N, C, H, W] -> [N, C, size, size]: a mean where the sizes divide, else bilinear."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, photos: Tensor) -> Tensor:
        """The photos' detail must fit `size` pixels: nothing is smoothed beyond that."""
        height, width = photos.shape[-2:]
        if height == width and height % self.size == 0:
            return functional.avg_pool2d(photos, height // self.size)
        return functional.interpolate(photos, (self.size, self.size), mode="bilinear")


class Network(nn.Module):
    """[N, 3, H, W] -> logits [N, classes]: `reduce`, then the architecture in `body`."""

    def __init__(self, body: nn.Module, body_size: int | None) -> None:
        super().__init__()
        self.reduce: nn.Module = Reduce(body_size) if body_size else nn.Identity()
        self.body = body

    def forward(self, photos: Tensor) -> Tensor:
        """Normalised photos -> logits."""
        logits: Tensor = self.body(self.reduce(photos))
        return logits


def build(architecture: str | None, classes: int, body_size: int | None) -> Network:
    """An untrained network. Raises ConfigurationError for a name that torchvision lacks."""
    if architecture is None or architecture not in list_models():
        raise ConfigurationError(f"torchvision has no architecture named {architecture!r}")
    return Network(get_model(architecture, weights=None, num_classes=classes), body_size)
