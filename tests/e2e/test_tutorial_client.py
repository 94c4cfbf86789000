"""The serving tutorials' page for Triton: it resizes, normalises and softmaxes by itself.

Against the shipped model it asks `food_classifier_onnx`, which computes what it is sent. Its resizing
to 224x224 differs from the service's pipeline, which cuts out a small square first, enlarged again.
A picture that is such a square already comes out of both alike, but for the rounding to whole grey
levels; of others the tutorial's client shows the model more detail and another cut.
"""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import requests
from PIL import Image
from PIL.Image import Resampling
from tritonclient import http as triton

from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.image.decode import ImageDecoder
from tests import pictures

pytestmark = pytest.mark.slow

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


@pytest.fixture
def client(backend_url: str) -> Iterator[Any]:  # tritonclient has no types
    """Triton's client."""
    made = triton.InferenceServerClient(backend_url.removeprefix("http://"))
    yield made
    made.close()


def prepared(photo: bytes) -> np.ndarray:
    """What the tutorials' page sends: float32 [1, 3, 224, 224]."""
    image = Image.open(io.BytesIO(photo)).convert("RGB").resize((224, 224), Resampling.BILINEAR)
    values = (np.asarray(image) / 255 - MEAN) / STD
    return np.ascontiguousarray(values.transpose(2, 0, 1)[np.newaxis], np.float32)


def classified(client: Any, photo: bytes) -> np.ndarray:
    """The probabilities that the tutorials' page computes."""
    tensor = triton.InferInput("input", [1, 3, 224, 224], "FP32")
    tensor.set_data_from_numpy(prepared(photo))
    asked = [triton.InferRequestedOutput("output")]
    logits = client.infer("food_classifier_onnx", [tensor], outputs=asked).as_numpy("output")[0]
    exponentials = np.exp(logits - logits.max())
    probabilities: np.ndarray = exponentials / exponentials.sum()
    return probabilities


def drawing(seed: int, width: int, height: int) -> bytes:
    """A smooth picture of a few colours, different for each seed."""
    colours = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    image = Image.fromarray(colours).resize((width, height), Resampling.BICUBIC)
    return pictures.encode(image, "PNG")


def native(url: str, photo: bytes) -> dict[str, float]:
    """All probabilities of `POST /predict`."""
    answer = requests.post(f"{url}/predict?top_k=11", data=photo, timeout=30)
    assert answer.status_code == 200, answer.text
    return {candidate["label"]: candidate["probability"] for candidate in answer.json()["top"]}


def square() -> int:
    """The side of the square that the shipped model's pipeline cuts out, in pixels."""
    image = Model.read(Settings().model_dir).description.pipeline
    side = image.center_crop
    assert side is not None
    assert (image.resize, image.enlarge) == (side, (224, 224))
    return side


@pytest.mark.parametrize("seed", range(8))
def test_the_same_class_where_the_resizing_agrees(backend_url: str, client: Any, seed: int) -> None:
    labels = Model.read(Settings().model_dir).labels
    photo = drawing(seed, square(), square())
    wanted, actual = native(backend_url, photo), classified(client, photo)
    assert labels[int(actual.argmax())] == max(wanted, key=wanted.__getitem__)
    np.testing.assert_allclose(actual, [wanted[label] for label in labels], atol=1e-3)


@pytest.mark.parametrize("size", [(320, 240), (240, 320), (224, 224)])
def test_elsewhere_only_the_resizing_differs(
    backend_url: str, client: Any, size: tuple[int, int]
) -> None:
    """With the service's own pixels that client gets the service's answer, with its own another."""
    model = Model.read(Settings().model_dir)
    photo = pictures.jpeg(*size)
    pixels = ImageDecoder(model.description.pipeline, 10**6).decode(photo)
    as_served = pictures.encode(Image.fromarray(pixels), "PNG")
    wanted, actual = native(backend_url, photo), classified(client, as_served)
    by_label = [wanted[label] for label in model.labels]
    np.testing.assert_allclose(actual, by_label, atol=1e-3)
    assert not np.allclose(prepared(photo), prepared(as_served), atol=0.1)
    assert not np.allclose(classified(client, photo), actual, atol=1e-3)
