"""Pixels are those of transformers' image processors, for files as they are on the Hub."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import AutoImageProcessor

from smallplates.models.folder import Model
from smallplates.tasks.image.decode import ImageDecoder
from tests import pictures

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
TOP = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.47853944, 0.4732864, 0.47434163]}
SQUARE = {"height": 224, "width": 224}


OBLONG = {"height": 160, "width": 320}


def of(kind: str, resample: int, size: int | list[int] | dict[str, int], **more: Any) -> dict[str, Any]:
    """A file with an image processor of this kind, or an older feature extractor."""
    role = "image_processor" if isinstance(size, dict) else "feature_extractor"
    name = kind + role.title().replace("_", "")
    given = {"do_resize": True, "do_normalize": True, **IMAGENET, "resample": resample, "size": size}
    return {f"{role}_type": name, **given, **more}


def short(side: int) -> dict[str, int]:
    return {"shortest_edge": side}


CROPPED = {"do_center_crop": True, "crop_size": 224}
OFFSET = {"rescale_offset": True, "rescale_factor": 1 / 127.5}
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "google/vit-base-patch16-224": ("vit", {"do_resize": True, "size": 224, **HALF}),
    "google/vit-large-patch16-384": ("vit", of("ViT", 2, 384, **HALF)),
    "facebook/deit-base-distilled-patch16-224": ("deit", of("DeiT", 3, 256, **CROPPED)),
    "facebook/convnext-tiny-224": ("convnext", of("ConvNext", 3, 224, crop_pct=0.875)),
    "facebook/convnext-base-384": ("convnext", of("ConvNext", 3, 384, crop_pct=1.0)),
    "microsoft/beit-base-patch16-224": ("beit", of("Beit", 2, 224, do_center_crop=False, **HALF)),
    "google/mobilenet_v2_1.0_224": ("mobilenet_v2", of("MobileNetV2", 2, short(256), **CROPPED)),
    "apple/mobilevit-small": (
        "mobilevit",
        of("MobileViT", 2, 288, do_center_crop=True, crop_size=256, do_flip_channels=True),
    ),
    "google/efficientnet-b0": ("efficientnet", of("EfficientNet", 0, SQUARE, include_top=True, **TOP)),
    "efficientnet with an offset": ("efficientnet", of("EfficientNet", 3, SQUARE, **OFFSET)),
    "facebook/levit-128S": ("levit", of("Levit", 3, 224, do_center_crop=True)),
    "sail/poolformer_s12": ("poolformer", of("PoolFormer", 3, 224, crop_pct=0.9)),
    "poolformer without scaling": ("poolformer", of("PoolFormer", 3, 224, crop_pct=None)),
    "snap-research/efficientformer-l1-300": (
        "efficientformer",
        of("EfficientFormer", 3, short(224), **CROPPED),
    ),
    "google/vit-hybrid-base-bit-384": ("vit_hybrid", of("ViTHybrid", 3, short(384), crop_size=384)),
    "nvidia/mit-b0": ("segformer", of("Segformer", 2, 512, reduce_labels=False)),
    "google/siglip-base-patch16-224": ("siglip", of("Siglip", 3, SQUARE, **HALF)),
    "openai/clip-vit-base-patch32": ("clip", of("CLIP", 3, 224, **CROPPED)),
    "a crop beyond the image": ("clip", of("CLIP", 3, short(201), **CROPPED)),
    "a crop that is not square": ("clip", of("CLIP", 3, short(201), crop_size=OBLONG)),
    "an oblong crop beyond the image": ("deit", of("DeiT", 3, {**SQUARE}, crop_size=OBLONG)),
    "sizes as lists": ("deit", of("DeiT", 3, [224, 160], crop_size=[160, 128])),
    "facebook/dinov2-small-imagenet1k-1-layer": ("dinov2", of("Bit", 3, short(256), **CROPPED)),
    "Zetatech/pvt-tiny-224": ("pvt", of("Pvt", 2, SQUARE)),
    "null is false": ("deit", of("DeiT", 3, SQUARE, do_center_crop=None, do_rescale=None)),
}


@pytest.mark.parametrize("name", FILES)
def test_pixels(name: str, tmp_path: Path) -> None:
    model_type, file = FILES[name]
    config = {"architectures": ["ViTForImageClassification"], "model_type": model_type}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(file))
    pipeline = Model.read(tmp_path, name="made").description.pipeline
    decoder = ImageDecoder(pipeline, 10**7)
    processor = AutoImageProcessor.from_pretrained(tmp_path, use_fast=False)
    noise = np.random.default_rng(0).integers(0, 256, (333, 501, 3), np.uint8)
    for image in (Image.fromarray(noise), pictures.plate(37, 91), pictures.plate(2, 40)):
        expected = processor(images=image, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
        pixels = decoder.decode(pictures.encode(image, "PNG")) / 255
        actual = (pixels - pipeline.mean) / pipeline.std
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)
