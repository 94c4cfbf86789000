"""`fastapi_pt.cuda`, as far as a CPU goes: buckets, slots and hand-over, without a recording."""

import contextlib
import gc
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastapi_pt import cuda
from fastapi_pt.backend import TorchBackend
from fastapi_pt.network import Normalise, fold, read_network
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.image_classification import compute_logits
from smallplates.worker import precision_check
from smallplates.worker.device_errors import OutOfDeviceMemoryError

pytestmark = [pytest.mark.slow, pytest.mark.torch]


class Queue:
    """A stream and an event where everything is done at once."""

    def __init__(self, *_: object, **__: object) -> None:
        self.waited = 0

    def record(self, _: object) -> None:
        """Nothing is under way."""

    def synchronize(self) -> None:
        self.waited += 1

    def wait_event(self, event: object) -> None:
        assert isinstance(event, Queue)


class Device(contextlib.nullcontext[None]):
    """Makes the network's GPU the current one, as long as it is entered."""

    entered = 0

    def __enter__(self) -> None:
        Device.entered += 1

    def __exit__(self, *_: object) -> None:
        Device.entered -= 1


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Queue)
    monkeypatch.setattr(torch.cuda, "Event", Queue)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(cuda, "pin", lambda shape: torch.zeros(shape))


@pytest.fixture(scope="module")
def expected(model: Model, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    backend = TorchBackend()
    backend.load(model, Settings(device="cpu", precision="fp32"))
    return compute_logits(backend, pixels)


def network_of(model: Model, dtype: torch.dtype = torch.float32) -> cuda.CudaNetwork:
    network = fold(read_network(model)).to(dtype)
    image = model.description.pipeline
    return cuda.CudaNetwork(
        network, Normalise(image), image.output_size, len(model.labels), graphs=False
    )


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float16, 2e-2)], ids=["fp32", "fp16"]
)
def test_every_size_answers_as_on_the_cpu(
    model: Model,
    pixels: NDArray[np.uint8],
    expected: NDArray[np.float32],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    network = network_of(model, dtype)
    photos = Normalise(model.description.pipeline)(torch.from_numpy(pixels)).contiguous().numpy()
    for size in (4, 1, 4):
        for first in (0, 4):
            part = slice(first, first + size)
            np.testing.assert_allclose(network.infer(pixels[part]), expected[part], atol=tolerance)
            actual = network.infer(photos[part])
            np.testing.assert_allclose(actual, expected[part], atol=tolerance)


@pytest.mark.usefixtures("processor")
def test_a_size_that_does_not_fit_is_let_go(
    model: Model, pixels: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[cuda.Bucket]] = []

    class Watched(cuda.Bucket):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(weakref.ref(self))

    def full(_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(cuda, "Bucket", Watched)
    network = network_of(model)
    network._network.register_forward_pre_hook(lambda module, _: full(module))
    gc.disable()  # what a cycle held would be free by chance only
    try:
        with contextlib.suppress(OutOfDeviceMemoryError):
            network.infer(pixels[:4])
        assert [bucket() for bucket in made] == [None]
    finally:
        gc.enable()


def test_half_precision_is_only_used_where_it_agrees(
    model: Model, pixels: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision_check, "LEAST_SAMPLES", 8)  # a CPU takes long in fp16
    network, normalise = read_network(model), Normalise(model.description.pipeline)

    def images(seed: int) -> list[torch.Tensor]:
        return [normalise(torch.from_numpy(np.roll(pixels, seed)))]

    half = partial(cuda.in_half, model, network, images)
    with torch.inference_mode():
        assert half("fp32") == (network, "fp32", "SERVING_PRECISION=fp32")
        chosen, *why = half("fp16")
        assert (next(chosen.parameters()).dtype, why) == (
            torch.float16,
            ["fp16", "SERVING_PRECISION=fp16"],
        )
        monkeypatch.setattr(precision_check, "MAX_DIFFERENCE", 0.0)
        chosen, precision, reason = half("auto")
        assert (chosen is network, precision) == (True, "fp32")
        assert "fp16: differs by" in reason
        with pytest.raises(ConfigurationError, match="SERVING_PRECISION=fp16 cannot be used"):
            half("fp16")


def test_half_precision_on_a_cpu_is_refused(model: Model) -> None:
    with pytest.raises(ConfigurationError, match="needs a GPU"):
        TorchBackend().load(model, Settings(device="cpu", precision="fp16"))
