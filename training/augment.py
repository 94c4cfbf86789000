"""Augmentation: random changes of whole batches, cheap enough to run between two training steps.

Called by `photos.py`. Photos are float [N, 3, H, W], on any device; nothing waits for a GPU.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional


def uniform(photos: Tensor, least: float, most: float, *shape: int) -> Tensor:
    """Returns random numbers, float of this shape, on the photos' device."""
    return torch.empty(shape, device=photos.device).uniform_(least, most)


def random_resized_crop(
    photos: Tensor, size: int, min_area: float, max_area: float = 1.0, rotation: float = 0.0
) -> Tensor:
    """Crops each photo at random (area `min_area` to `max_area`, aspect 3:4 to 4:3), turns it by up to
    `rotation` radians, mirrors half of them, and enlarges to `size`, all in one bilinear sampling.

    [N, 3, H, W] float -> [N, 3, size, size] float. What lies outside a photo is its mirror image.
    """
    n, device = len(photos), photos.device
    area = uniform(photos, min_area, max_area, n)
    aspect = uniform(photos, math.log(3 / 4), math.log(4 / 3), n).exp()
    limit = max(1.0, math.sqrt(max_area))
    width = (area * aspect).sqrt().clamp(max=limit)
    height = (area / aspect).sqrt().clamp(max=limit)
    mirror = torch.where(torch.rand(n, device=device) < 0.5, -1.0, 1.0)
    angle = uniform(photos, -rotation, rotation, n)
    theta = torch.zeros(n, 2, 3, device=device)
    theta[:, 0, 0] = width * mirror * angle.cos()
    theta[:, 0, 1] = -height * angle.sin()
    theta[:, 1, 0] = width * mirror * angle.sin()
    theta[:, 1, 1] = height * angle.cos()
    theta[:, 0, 2] = uniform(photos, -1, 1, n) * (1 - width)
    theta[:, 1, 2] = uniform(photos, -1, 1, n) * (1 - height)
    grid = functional.affine_grid(theta, [n, 3, size, size], align_corners=False)
    return functional.grid_sample(photos, grid, padding_mode="reflection", align_corners=False)


def colour_jitter(photos: Tensor, strength: float) -> Tensor:
    """Scales brightness, contrast and saturation, each by 1 ± `strength`; photos are in [0, 1]."""
    n = len(photos)
    brightness, contrast, saturation = uniform(
        photos, 1 - strength, 1 + strength, 3, n, 1, 1, 1
    ).unbind()
    photos = photos * brightness
    mean = photos.mean(dim=(1, 2, 3), keepdim=True)
    photos = mean + (photos - mean) * contrast
    grey = photos.mean(dim=1, keepdim=True)
    return (grey + (photos - grey) * saturation).clamp(0, 1)


def camera(photos: Tensor, strength: float) -> Tensor:
    """Changes white balance, colour, sharpness and noise as other cameras would; photos in [0, 1]."""
    n = len(photos)
    photos = photos * uniform(photos, 1 - 0.15 * strength, 1 + 0.15 * strength, n, 3, 1, 1)
    grey = (uniform(photos, 0, 1, n, 1, 1, 1) < 0.08 * strength).float()
    photos = photos.lerp(photos.mean(dim=1, keepdim=True), grey)
    blurred = functional.avg_pool2d(photos, 3, stride=1, padding=1, count_include_pad=False)
    softness = uniform(photos, -0.7 * strength, strength, n, 1, 1, 1)
    photos = photos + softness * (blurred - photos)
    noise = uniform(photos, 0, 0.03 * strength, n, 1, 1, 1)
    return (photos + noise * torch.randn_like(photos)).clamp(0, 1)


def cutmix(photos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pastes a rectangle of another photo of the batch into each (Yun et al., 2019).

    Returns the photos, the share [N, 1] of each that is still its own, and the other photos' indices.
    """
    n, _, height, width = photos.shape
    device = photos.device
    side = uniform(photos, 0, 1, n, 1).sqrt()  # of the pasted rectangle: its area is uniform in [0, 1]
    top, left = uniform(photos, 0, 1, n, 1) - side / 2, uniform(photos, 0, 1, n, 1) - side / 2
    y, x = (torch.linspace(0, 1, sides, device=device)[None] for sides in (height, width))
    rows = (y >= top) & (y < top + side)
    columns = (x >= left) & (x < left + side)
    inside = (rows[:, None, :, None] & columns[:, None, None, :]).float()
    order = torch.randperm(n, device=device)
    return photos.lerp(photos[order], inside), 1 - inside.mean(dim=(1, 2, 3))[:, None], order


def mixup(photos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Blends up to half of another photo of the batch into each (Zhang et al., 2018); as `cutmix`."""
    share = uniform(photos, 0.5, 1, len(photos), 1)
    order = torch.randperm(len(photos), device=photos.device)
    return photos[order].lerp(photos, share[:, :, None, None]), share, order
