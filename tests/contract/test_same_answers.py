"""Both backends give the same class, and in fp32 probabilities within 1e-3, for the same photo."""

import numpy as np
import pytest

from fastapi_onnx.backend import OnnxBackend
from fastapi_pt.backend import TorchBackend
from smallplates.models.description import ImagePipeline
from smallplates.models.folder import Model
from smallplates.models.scores import softmax
from smallplates.settings import Settings
from smallplates.tasks.image.decode import ImageDecoder
from smallplates.tasks.image_classification import compute_logits
from tests import pictures

pytestmark = [pytest.mark.slow, pytest.mark.torch]


@pytest.fixture(scope="module")
def batch() -> np.ndarray:
    """Every readable test picture, and noise; uint8 [N, 224, 224, 3]."""
    settings = Settings()
    decoder = ImageDecoder(Model.read(settings.model_dir).description.pipeline, 50_000_000)
    drawn = [decoder.decode(make()) for make in pictures.READABLE.values()]
    noise = np.random.default_rng(3).integers(0, 256, (8, 224, 224, 3), np.uint8)
    return np.concatenate([np.stack(drawn), noise])


def normalise(batch: np.ndarray, pipeline: ImagePipeline) -> np.ndarray:
    """What a client does itself: uint8 [N, H, W, 3] -> float32 [N, 3, H, W]."""
    photos = (batch / 255 - np.array(pipeline.mean)) / np.array(pipeline.std)
    normalised: np.ndarray = photos.transpose(0, 3, 1, 2).astype(np.float32)
    return normalised


@pytest.fixture(scope="module")
def logits(batch: np.ndarray) -> list[np.ndarray]:
    """The logits of the whole batch, per backend."""
    settings = Settings(device="cpu", precision="fp32")
    model = Model.read(settings.model_dir)
    answers = []
    for backend in (OnnxBackend(), TorchBackend()):
        backend.load(model, settings)
        whole = compute_logits(backend, batch)
        single = np.concatenate([compute_logits(backend, batch[i : i + 1]) for i in range(len(batch))])
        normalised = normalise(batch, model.description.pipeline)
        tensors = compute_logits(backend, normalised)
        alone = compute_logits(backend, normalised[:1])
        backend.close()
        np.testing.assert_allclose(tensors, whole, atol=1e-3)
        np.testing.assert_allclose(alone, whole[:1], atol=1e-3)
        assert whole.dtype == np.float32
        assert whole.shape == (len(batch), len(model.labels))
        np.testing.assert_allclose(whole, single, atol=1e-3)
        answers.append(whole)
    return answers


def test_same_class_and_probabilities(logits: list[np.ndarray]) -> None:
    onnx, pt = map(softmax, logits)
    assert np.array_equal(onnx.argmax(axis=1), pt.argmax(axis=1))
    assert np.abs(onnx - pt).max() < 1e-3
