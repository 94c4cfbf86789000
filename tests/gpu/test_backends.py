"""Each backend on a GPU against itself on the CPU: bucket sizes, precisions, with and without graphs."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from smallplates.engine.backend import Backend
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.image_classification import compute_logits
from smallplates.worker import batch_sizes, precision_check
from smallplates.worker.device_errors import OutOfDeviceMemoryError
from tests.gpu.conftest import fraction

pytestmark = pytest.mark.gpu

TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2}
LARGEST = 64
ROOM = {"fastapi_onnx": 2.0, "fastapi_pt": 0.75}
"""GiB in which one picture fits, and 512 do not."""

Load = Callable[..., Backend]


@pytest.fixture
def load(package: str) -> Load:
    """Loads the shipped model with these settings."""
    module, _, name = importlib.import_module(package).BACKEND.partition(":")

    def loaded(**settings: Any) -> Backend:
        backend: Backend = getattr(importlib.import_module(module), name)()
        chosen = Settings.model_validate({"precision": "fp32", **settings})
        info = backend.load(Model.read(chosen.model_dir), chosen)
        assert info.device == ("cpu" if chosen.device == "cpu" else "cuda:0")
        assert info.precision == chosen.precision
        return backend

    return loaded


@pytest.fixture
def pixels() -> NDArray[np.uint8]:
    """As many pictures as the largest batch has, no two alike."""
    model = Model.read(Settings().model_dir)
    eight = precision_check.sample_images(model.description.pipeline.output_size)
    rounds = LARGEST // len(eight)
    return np.concatenate([np.roll(eight, 8 * shift, axis=1) for shift in range(rounds)])


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "kernels"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_bucket_answers_as_the_cpu_does(
    load: Load, pixels: NDArray[np.uint8], precision: str, graphs: bool
) -> None:
    on_cpu = load(device="cpu")
    expected = np.concatenate(
        [compute_logits(on_cpu, pixels[at : at + 8]) for at in range(0, LARGEST, 8)]
    )
    on_gpu = load(device="cuda", precision=precision, cuda_graphs=graphs)
    close = TOLERANCE[precision]
    sizes = batch_sizes.sizes(Settings(max_batch_size=LARGEST), "cuda")
    for size in [*reversed(sizes), *sizes]:  # recorded, then each after another
        for first in {0, LARGEST - size}:
            part = slice(first, first + size)
            actual = compute_logits(on_gpu, pixels[part])
            np.testing.assert_allclose(actual, expected[part], atol=close, rtol=close)
    on_gpu.close()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_tensors_take_the_same_network(load: Load, pixels: NDArray[np.uint8], precision: str) -> None:
    image = Model.read(Settings().model_dir).description.pipeline
    mean, std = (np.asarray(values, np.float32) for values in (image.mean, image.std))
    photos: NDArray[np.float32] = np.empty((8, 3, *image.output_size), np.float32)
    photos[:] = ((pixels[:8] / 255 - mean) / std).transpose(0, 3, 1, 2)
    expected = compute_logits(load(device="cpu"), photos)
    backend = load(device="cuda", precision=precision)
    close = TOLERANCE[precision]
    np.testing.assert_allclose(compute_logits(backend, photos), expected, atol=close, rtol=close)
    np.testing.assert_allclose(compute_logits(backend, pixels[:8]), expected, atol=close, rtol=close)
    backend.close()


def test_a_batch_that_does_not_fit_leaves_the_device_usable(
    load: Load, package: str, pixels: NDArray[np.uint8]
) -> None:
    room = fraction(ROOM[package])
    backend = load(device="cuda", precision="fp16", gpu_memory_fraction=room, max_batch_size=512)
    before = compute_logits(backend, pixels[:1])
    with pytest.raises(OutOfDeviceMemoryError):
        compute_logits(backend, np.repeat(pixels, 8, axis=0))
    np.testing.assert_array_equal(compute_logits(backend, pixels[:1]), before)
    backend.close()


def test_a_gpu_that_is_not_there_is_refused(load: Load) -> None:
    with pytest.raises(ConfigurationError, match=r"GPU 99|invalid device"):
        load(device="cuda", devices="99")
