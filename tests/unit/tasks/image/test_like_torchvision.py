"""`decode` is equal to torchvision where no shortcut is taken, and close to it elsewhere."""

import io

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

from smallplates.models.description import ImagePipeline
from smallplates.tasks.image.decode import ImageDecoder
from tests import pictures
from tests.unit.tasks.image.test_decode import CROPPED, IDENTITY, LIMIT, SQUEEZED

pytestmark = [pytest.mark.slow, pytest.mark.torch]

CLASSIC = ImagePipeline(resize=256, center_crop=224, **IDENTITY)
NARROW = ImagePipeline(resize=32, center_crop=48, **IDENTITY)
ODD = ImagePipeline(resize=33, center_crop=48, **IDENTITY)
BEYOND = ImagePipeline(resize=33, center_crop=34, **IDENTITY)
OBLONG = ImagePipeline(resize=64, center_crop=(48, 90), **IDENTITY)


def torchvision_pipeline(pipeline: ImagePipeline) -> v2.Compose:
    steps: list[object] = [v2.Resize(pipeline.resize)]
    if pipeline.center_crop:
        steps.append(v2.CenterCrop(pipeline.center_crop))
    if pipeline.enlarge:
        steps.append(v2.Resize(pipeline.enlarge))
    return v2.Compose(steps)


@pytest.mark.parametrize("pipeline", [CROPPED, SQUEEZED, CLASSIC, NARROW, ODD, BEYOND, OBLONG])
@pytest.mark.parametrize("size", [(320, 240), (241, 517), (64, 64), (1003, 77), (30, 200), (9, 9)])
def test_equals_torchvision_within_one_grey_level(
    pipeline: ImagePipeline, size: tuple[int, int]
) -> None:
    image = pictures.plate(*size)
    pixels = ImageDecoder(pipeline, LIMIT).decode(pictures.encode(image, "PNG"))
    expected = np.asarray(torchvision_pipeline(pipeline)(image))
    assert pixels.shape == expected.shape == (*pipeline.output_size, 3)
    assert np.abs(pixels.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("pipeline", [CROPPED, SQUEEZED])
def test_the_draft_of_a_large_jpeg_is_close_to_the_whole(pipeline: ImagePipeline) -> None:
    data = pictures.jpeg(2000, 1500)
    pixels = ImageDecoder(pipeline, LIMIT).decode(data).astype(int)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(torchvision_pipeline(pipeline)(image)).astype(int)
    assert np.abs(pixels - expected).mean() < 3
