"""The engine's promises hold for tensors and for several inputs of one request, too.

The service runs in this process, its workers in processes of their own.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from smallplates.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidImageError,
    InvalidRequestError,
    InvalidTensorError,
    OverloadedError,
)
from smallplates.models.folder import configured_models
from smallplates.settings import Settings
from smallplates.supervision.planner import planner
from smallplates.supervision.registry import Registry
from smallplates.tasks.base import Candidate, Fields, Prepared
from smallplates.tasks.image_classification import TENSOR
from smallplates.web.inference.served_model import Answer, Input, RequestOptions
from smallplates.web.inference.service import InferenceService
from tests.e2e.conftest import obedient
from tests.e2e.services import until
from tests.fake import BACKEND
from tests.fake.backend import Failure, command, command_tensor

pytestmark = pytest.mark.anyio

SMALL = {"SERVING_INSTANCES": "1", "SERVING_QUEUE_SIZE": "16"}


@asynccontextmanager
async def engine(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], **more: str
) -> AsyncIterator[InferenceService]:
    """A service whose workers obey; the workers read the same environment."""
    named = {f"SERVING_{name.upper()}": value for name, value in more.items()}
    for name, value in {**settings, **SMALL, **named}.items():
        monkeypatch.setenv(name, value)
    chosen = Settings()
    models = configured_models(chosen)
    registry = Registry(chosen, planner(BACKEND, chosen), models)
    service = InferenceService(chosen, registry, models)
    async with service.running():
        yield service


@pytest.fixture(scope="module")
async def service(
    fake_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[InferenceService]:
    """A service for the tests that hold and count nothing, and crash no worker."""
    settings = obedient(fake_model, tmp_path_factory.mktemp("shared"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        async with engine(monkeypatch, settings, max_batch_size="4") as service:
            yield service


def soon(seconds: float = 30) -> float:
    """A deadline."""
    return time.monotonic() + seconds


async def infer(service: InferenceService, arrays: list[Any], seconds: float = 30) -> Answer:
    """Calls the model with tensors, within this time limit."""
    model = service.active
    options, signature = RequestOptions(round(seconds * 1000)), model.task.tensor_signature or 0
    async with model.admitted(options, signature) as slots:
        return await model.infer(arrays, options, slots)


async def predict(service: InferenceService, inputs: list[Input]) -> Answer:
    """Calls the model with requests."""
    options = RequestOptions(30_000)
    async with service.active.admitted(options) as slots:
        return await service.active.predict(inputs, 1, options, slots)


def tensors(*commands: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of one request."""
    return np.stack(commands)


def numbered(*indices: int) -> NDArray[np.float32]:
    """Tensors whose classes are these numbers."""
    return tensors(*(command_tensor(class_index=index) for index in indices))


def picture(data: bytes) -> Input:
    """A request's input."""
    return Input(len(data), lambda: {"image": data})


def classes(answer: Answer) -> list[int]:
    """The class of each input."""
    return [int(np.argmax(row)) for row in answer.arrays[0]]


def held_task(service: InferenceService) -> "asyncio.Task[Answer]":
    """A computation that lasts until the gate is there."""
    held = tensors(command_tensor(held=True, class_index=99))
    return asyncio.ensure_future(infer(service, [held]))


def free_slots(service: InferenceService) -> int:
    """As the metrics count them."""
    memory = service.active.client.memory
    return memory.layout.slots - sum(memory.in_flight)


async def test_one_bad_input_fails_its_request_and_frees_all_its_slots(
    service: InferenceService,
) -> None:
    poison = command_tensor(failure=Failure.RAISE)
    with pytest.raises(InternalError):
        await infer(service, [tensors(command_tensor(), poison, poison)])
    files = (command(), b"no picture", b"neither")
    pictures = [picture(data) for data in files]
    with pytest.raises(InvalidImageError) as caught:
        await predict(service, pictures)
    assert caught.value.detail.startswith("element 1: not a JPEG")
    await until(lambda: free_slots(service) == 16)
    assert classes(await infer(service, [numbered(2)])) == [2]


async def test_deadline_and_cancellation_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, fake_settings: dict[str, str], tmp_path: Path
) -> None:
    async with engine(monkeypatch, fake_settings, instances="1", max_batch_size="1") as service:
        first = held_task(service)
        await until((tmp_path / "gate.held").exists)
        with pytest.raises(DeadlineExceededError):
            await infer(service, [numbered(1, 2, 3)], 0.05)
        leaving = asyncio.ensure_future(infer(service, [numbered(4, 5)]))
        await until(lambda: free_slots(service) == 11)  # the third was not queued
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        (tmp_path / "gate").touch()
        assert classes(await first) == [99]
        await until(lambda: free_slots(service) == 16)
        totals = service.active.client.statistics.totals(TENSOR)
        assert (totals.inferences, totals.successes, totals.failures) == (1, 1, 2)


async def test_a_request_is_admitted_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, fake_settings: dict[str, str], tmp_path: Path
) -> None:
    async with engine(monkeypatch, fake_settings, instances="1", max_batch_size="1") as service:
        held = [held_task(service) for _ in range(13)]
        await until(lambda: free_slots(service) == 3)
        with pytest.raises(OverloadedError):
            await infer(service, [numbered(*range(7))])
        assert free_slots(service) == 3
        (tmp_path / "gate").touch()
        await asyncio.gather(*held)
        with pytest.raises(InvalidRequestError, match="1 to 4096 inputs"):
            await infer(service, [numbered(*range(4097))])
        assert classes(await infer(service, [numbered(*range(8))])) == list(range(8))


async def test_logits_of_tensors_need_not_be_finite(
    service: InferenceService,
) -> None:
    answer = await infer(service, [tensors(command_tensor(failure=Failure.NOT_FINITE))])
    assert not np.isfinite(answer.arrays[0]).all()
    with pytest.raises(InvalidTensorError, match="element 0"):
        service.active.check_finite(answer)


async def test_a_tensor_of_another_shape_is_refused(
    service: InferenceService,
) -> None:
    with pytest.raises(InvalidTensorError, match="shape"):
        await infer(service, [numbered(1)[:, :, :4]])
    assert free_slots(service) == 16


@pytest.mark.parametrize("runs_inline", [True, False])
async def test_answers_that_are_slow_to_make_are_made_on_a_thread(
    monkeypatch: pytest.MonkeyPatch, service: InferenceService, runs_inline: bool
) -> None:
    threads: list[threading.Thread] = []
    task = service.active.task
    preprocess, postprocess = task.preprocess, task.postprocess

    def prepared(fields: Fields) -> Prepared:
        return replace(preprocess(fields), runs_inline=runs_inline)

    def answers(*arguments: Any) -> list[Candidate]:
        threads.append(threading.current_thread())
        return postprocess(*arguments)

    monkeypatch.setattr(task, "preprocess", prepared)
    monkeypatch.setattr(task, "postprocess", answers)
    answer = await predict(service, [picture(command(class_index=4))])
    assert answer.candidates[0][0]["index"] == 4
    assert [thread is threading.main_thread() for thread in threads] == [runs_inline]
