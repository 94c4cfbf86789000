"""Augmentation: random changes of whole batches, cheap enough to run between two training steps.

Called by `train.py`. Photos are float [N, 3, H, W].
"""

import math

import torch
from torch import Tensor
from torch.nn import functional


def random_resized_crop(
    photos: Tensor, size: int, min_area: float, max_area: float = 1.0, rotation: float = 0.0
) -> Tensor:
    """Crops each photo at random (area `min_area` to `max_area`, aspect 3:4 to 4:3), turns it by up to
    `rotation` radians, mirrors half of them, and enlarges to `size`, all in one bilinear sampling.

    [N, 3, H, W] float -> [N, 3, size, size] float. What lies outside a photo is its mirror image.
    """
    n = len(photos)
    area = torch.empty(n).uniform_(min_area, max_area)
    aspect = torch.empty(n).uniform_(math.log(3 / 4), math.log(4 / 3)).exp()
    limit = max(1.0, math.sqrt(max_area))
    width = (area * aspect).sqrt().clamp(max=limit)
    height = (area / aspect).sqrt().clamp(max=limit)
    mirror = torch.where(torch.rand(n) < 0.5, -1.0, 1.0)
    angle = torch.empty(n).uniform_(-rotation, rotation)
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0] = width * mirror * angle.cos()
    theta[:, 0, 1] = -height * angle.sin()
    theta[:, 1, 0] = width * mirror * angle.sin()
    theta[:, 1, 1] = height * angle.cos()
    theta[:, 0, 2] = (torch.rand(n) * 2 - 1) * (1 - width)
    theta[:, 1, 2] = (torch.rand(n) * 2 - 1) * (1 - height)
    grid = functional.affine_grid(theta, [n, 3, size, size], align_corners=False)
    return functional.grid_sample(photos, grid, padding_mode="reflection", align_corners=False)


def colour_jitter(photos: Tensor, strength: float) -> Tensor:
    """Scales brightness, contrast and saturation, each by 1 ± `strength`; photos are in [0, 1]."""
    n = len(photos)
    brightness, contrast, saturation = (
        torch.empty(3, n, 1, 1, 1).uniform_(1 - strength, 1 + strength).unbind()
    )
    photos = photos * brightness
    mean = photos.mean(dim=(1, 2, 3), keepdim=True)
    photos = mean + (photos - mean) * contrast
    grey = photos.mean(dim=1, keepdim=True)
    return (grey + (photos - grey) * saturation).clamp(0, 1)


def camera(photos: Tensor, strength: float) -> Tensor:
    """Changes white balance, colour, sharpness and noise as other cameras would; photos in [0, 1]."""
    n = len(photos)
    photos = photos * torch.empty(n, 3, 1, 1).uniform_(1 - 0.15 * strength, 1 + 0.15 * strength)
    grey = (torch.rand(n, 1, 1, 1) < 0.08 * strength).float()
    photos = photos.lerp(photos.mean(dim=1, keepdim=True), grey)
    blurred = functional.avg_pool2d(photos, 3, stride=1, padding=1, count_include_pad=False)
    softness = torch.empty(n, 1, 1, 1).uniform_(-0.7 * strength, strength)
    photos = photos + softness * (blurred - photos)
    noise = torch.empty(n, 1, 1, 1).uniform_(0, 0.03 * strength)
    return (photos + noise * torch.randn_like(photos)).clamp(0, 1)


def cutmix(photos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pastes a rectangle of another photo of the batch into each (Yun et al., 2019).

    Returns the photos, the share [N, 1] of each that is still its own, and the other photos' indices.
    """
    n, _, height, width = photos.shape
    side = (1 - torch.rand(n, 1)).sqrt()  # of the pasted rectangle: its area is uniform in [0, 1]
    top, left = torch.rand(n, 1) - side / 2, torch.rand(n, 1) - side / 2
    y, x = torch.linspace(0, 1, height)[None], torch.linspace(0, 1, width)[None]
    rows = (y >= top) & (y < top + side)
    columns = (x >= left) & (x < left + side)
    inside = (rows[:, None, :, None] & columns[:, None, None, :]).float()
    order = torch.randperm(n)
    return photos.lerp(photos[order], inside), 1 - inside.mean(dim=(1, 2, 3))[:, None], order
