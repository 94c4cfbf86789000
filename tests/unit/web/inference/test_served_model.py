"""Where a model's images are decoded, and what an admitted request holds."""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import AsyncMock, MagicMock, Mock

import numpy as np
import pytest
from PIL import Image

from smallplates.engine.client import ItemResult
from smallplates.engine.memory import EngineFds, SlotLayout
from smallplates.errors import (
    DeadlineExceededError,
    ImageTooLargeError,
    OverloadedError,
    UnavailableError,
)
from smallplates.models.folder import Model
from smallplates.models.tensors import Signature
from smallplates.settings import Settings
from smallplates.supervision.registry import EngineHandle
from smallplates.system import cpus
from smallplates.tasks.base import Candidate, Fields, Outputs, Prepared, Task
from smallplates.tasks.image_classification import image_signatures
from smallplates.web.api.catalog import entries_of
from smallplates.web.inference import served_model
from smallplates.web.inference.served_model import Answer, Input, RequestOptions, ServedModel, Traffic
from smallplates.web.inference.thread_pool import ThreadPool
from smallplates.web.metrics import Metrics
from tests import pictures
from tests.reports import reported

IMAGES = image_signatures((8, 8), 9)


@pytest.mark.parametrize(
    ("cores", "worker_ms", "web_processes", "expected"),
    [
        (2, 5.0, 1, True),
        (2, 1.5, 1, True),  # the workers have not both cores to themselves
        (2, 0.7, 1, True),  # threads would wait for each other
        (2, 0.1, 1, False),
        (8, 5.0, 1, False),  # one event loop would hold up eight workers
        (8, 5.0, 2, True),
        (16, 1.5, 8, True),  # as `auto` chooses
    ],
)
def test_the_event_loop_decodes_where_it_keeps_the_workers_busy(
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    worker_ms: float,
    web_processes: int,
    expected: bool,
) -> None:
    monkeypatch.setattr(cpus, "usable", lambda: cores)
    service = served(model, "cpu", worker_ms, cores, web_processes)
    assert service.prepares_on_event_loop is expected


@pytest.mark.parametrize(("web_processes", "expected"), [(15, True), (4, False)])
def test_beside_a_gpu_it_does_so_where_every_core_has_a_web_process(
    model: Model, monkeypatch: pytest.MonkeyPatch, web_processes: int, expected: bool
) -> None:
    monkeypatch.setattr(cpus, "usable", lambda: 16)
    assert served(model, "cuda:0", 0.05, 1, web_processes).prepares_on_event_loop is expected


@pytest.mark.parametrize(
    ("milliseconds", "others", "free_slots", "on_threads", "in_turn"),
    [
        (2.0, False, 1, False, False),
        (2.0, False, 0, False, True),  # refusals would wait for the inputs before them
        (2.0, True, 1, True, False),  # another model's requests would, too
        (0.1, True, 0, False, False),
    ],
)
def test_small_inputs_are_prepared_on_the_event_loop_unless_others_would_wait(
    model: Model, milliseconds: float, others: bool, free_slots: int, on_threads: bool, in_turn: bool
) -> None:
    service = served(model, "cpu", 5.0, cpus.usable(), 64)
    service.client = Mock()
    service.client.free_slots.return_value = free_slots
    service._preparation_s = milliseconds / 1000
    service._turns = Mock(wait=AsyncMock())
    service._traffic = Mock(is_mixed=Mock(return_value=others))
    service._threads = Mock(run=AsyncMock())
    photo = pictures.jpeg()
    asyncio.run(service._preprocess(Input(len(photo), lambda: {"image": photo}), bulk=False))
    assert service._threads.run.called is on_threads
    assert service._turns.wait.called is in_turn


@pytest.mark.parametrize(
    ("width", "height", "large"), [(2000, 2000, False), (2001, 2000, True), (8000, 8000, None)]
)
def test_pictures_of_many_pixels_have_their_own_threads(
    model: Model, width: int, height: int, large: bool | None
) -> None:
    service, lanes = served(model, "cpu", 5.0, 2, 1), []

    async def run(work: Callable[[], Prepared], _bulk: bool, large: bool = False) -> Prepared:
        lanes.append(large)
        return work()

    service._threads = Mock(run=run)
    picture = pictures.encode(Image.new("1", (width, height)), "PNG")
    work = service._preprocess(Input(len(picture), lambda: {"image": picture}), bulk=True)
    with pytest.raises(ImageTooLargeError) if large is None else nullcontext():
        asyncio.run(work)
    assert lanes == ([False] if large is False else [False, True])


class Prompt(Task):
    """A task that answers which thread has made the answer."""

    most_candidates = 3

    def __init__(self, items: int, runs_inline: bool) -> None:
        self.items, self.runs_inline = items, runs_inline

    def preprocess(self, _: Fields) -> Prepared:
        return Prepared([()] * self.items, "context", runs_inline=self.runs_inline)

    def postprocess(self, prepared: Prepared, outputs: Outputs, top_k: int) -> list[Candidate]:
        assert (prepared.context, len(outputs)) == ("context", self.items)
        return [{"label": threading.current_thread().name}] * top_k


@pytest.mark.parametrize(
    ("inputs", "items", "runs_inline", "on_thread"),
    [(1, 1, True, False), (1, 1, False, True), (1, 2, True, True), (40, 1, True, True)],
)
def test_answers_that_take_long_to_make_are_made_on_a_thread(
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    inputs: int,
    items: int,
    runs_inline: bool,
    on_thread: bool,
) -> None:
    monkeypatch.setattr(served_model, "SLICE_S", 0.0)  # each answer has its own turn
    service = served(model, "cpu", 5.0, 2, 1)
    service.task, service.client = Prompt(items, runs_inline), Mock()
    service.client.most_queued.return_value = 4
    service._threads = threads = ThreadPool(1)
    results = [ItemResult([np.zeros(1)], 0.0, 0.0, 0.0, 1, True) for _ in range(inputs * items)]
    admission = Mock(submit=AsyncMock(), results=AsyncMock(return_value=results))
    prepared = [Input(1, dict) for _ in range(inputs)]

    async def main() -> Answer:
        threads.start()
        try:
            return await service.predict(prepared, 1_000_000, RequestOptions(1000), admission)
        finally:
            threads.close()

    answer = asyncio.run(main())
    assert answer.is_large is on_thread
    names = {candidate["label"] for candidates in answer.candidates for candidate in candidates}
    assert names == {"decode-0" if on_thread else threading.current_thread().name}
    assert [len(candidates) for candidates in answer.candidates] == [3] * inputs  # as many as there are
    assert not any(result.outputs for result in results)


def test_traffic_is_mixed_for_ten_seconds_after_requests_changed_to_another_model() -> None:
    traffic = Traffic()
    traffic.note("a", 0.0)
    traffic.note("a", 1.0)
    assert not traffic.is_mixed(1.0)
    traffic.note("b", 2.0)
    traffic.note("b", 9.0)
    assert traffic.is_mixed(11.9)
    assert not traffic.is_mixed(12.0)


@pytest.fixture
def admitting(model: Model) -> ServedModel:
    """A model whose engine does nothing."""
    service = served(model, "cpu", 5.0, 2, 1)
    service.client = MagicMock(is_down=False, ahead=0)
    service.client.most_queued.return_value = 4
    service.client.memory.serving_workers, service.client.memory.serving_since = [1], [0.0]
    slots = service.client.acquire()
    slots.acquired_at, slots.indices = time.monotonic(), [0]
    service.client.acquire.reset_mock()
    service._metrics = Mock()
    return service


def test_the_deadline_cuts_off_what_precedes_the_engine(admitting: ServedModel) -> None:
    async def decode_for_ever() -> None:
        async with admitting.admit(RequestOptions(1), 1):
            await asyncio.Event().wait()

    with pytest.raises(DeadlineExceededError):
        asyncio.run(decode_for_ever())
    admitting.client.acquire().__exit__.assert_called_once()  # type: ignore[attr-defined]
    assert admitting.client.statistics.count_failure.call_args[0][0] == 1  # type: ignore[attr-defined]
    assert admitting._metrics.expired.inc.call_count == 1  # type: ignore[attr-defined]


def test_a_limit_in_the_body_counts_from_the_last_byte(
    admitting: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        options = RequestOptions(60_000)
        async with admitting.admit(options) as admission:
            admission.slots.acquired_at -= 1  # decoding has taken a second
            monkeypatch.setattr(admission.slots, "submit", AsyncMock())
            monkeypatch.setattr(admission.slots, "results", asyncio.Event().wait)
            shorter = options.within(500_000)
            await admitting.infer([np.zeros((1, 3, 8, 8), np.float32)], shorter, admission)

    with pytest.raises(DeadlineExceededError):
        asyncio.run(main())


@pytest.mark.parametrize("bulk", [False, True])
def test_what_waits_too_long_for_its_limit_is_refused_before_and_after_its_body(
    admitting: ServedModel, monkeypatch: pytest.MonkeyPatch, bulk: bool
) -> None:
    """Learned from a request of the same priority that expired; one of the other says nothing."""

    async def ask(timeout_ms: int, bulk: bool, in_body_ms: int = 0, work: float = 0.0) -> None:
        options = RequestOptions(timeout_ms, bulk)
        admitting.refuse_if_full(options)
        async with admitting.admit(options) as admission:
            if in_body_ms:
                admission.begin(0, 1, in_body_ms)
            await asyncio.sleep(work)

    admitting.client.ahead = 10  # type: ignore[misc]
    with pytest.raises(DeadlineExceededError):
        asyncio.run(ask(300, bulk, work=60))
    failed, acquired = admitting.client.statistics.count_failure, admitting.client.acquire
    failed.reset_mock()  # type: ignore[attr-defined]
    acquired.reset_mock()  # type: ignore[attr-defined]
    with pytest.raises(OverloadedError, match="SERVING_MAX_WAIT_MS"):
        asyncio.run(ask(299, bulk))
    with monkeypatch.context() as patch:
        patch.setattr(ServedModel, "refuse_if_full", lambda *_: None)
        with pytest.raises(OverloadedError):
            asyncio.run(ask(299, bulk))
    assert not acquired.called  # type: ignore[attr-defined]
    with pytest.raises(OverloadedError):
        asyncio.run(ask(60_000, bulk, in_body_ms=299))
    assert [call.args[0] for call in failed.call_args_list] == [0, 0, 0]  # type: ignore[attr-defined]
    asyncio.run(ask(299, not bulk))
    admitting.client.ahead = 0  # type: ignore[misc]
    asyncio.run(ask(299, bulk))


def test_a_slot_is_held_while_a_body_is_decoded(admitting: ServedModel) -> None:
    async def main() -> None:
        async with admitting.admit(RequestOptions(1000, bulk=True)):
            admitting.client.acquire.assert_called_once_with(True)  # type: ignore[attr-defined]

    asyncio.run(main())
    admitting.client.acquire.side_effect = OverloadedError("full")  # type: ignore[attr-defined]
    with pytest.raises(OverloadedError):
        asyncio.run(main())


def test_a_request_whose_workers_have_failed_while_its_body_arrived(admitting: ServedModel) -> None:
    admitting.client.is_down = True  # type: ignore[misc]
    with pytest.raises(UnavailableError):
        admitting.admit(RequestOptions(1000))


def test_a_model_is_listed_although_its_folder_is_gone(model: Model, tmp_path: Path) -> None:
    folder = shutil.copytree(model.folder, tmp_path / "model")
    entry, *_ = entries_of(served(Model.read(folder), "cpu", 5.0, 2, 1))
    changed = int(folder.stat().st_mtime)
    shutil.rmtree(folder)
    assert entry.card["created"] == changed


def served(
    model: Model,
    device: str,
    worker_ms: float,
    workers: int,
    web_processes: int,
    signatures: tuple[Signature, ...] = IMAGES,
) -> ServedModel:
    """A model whose workers, `workers` in all, take this time for an input."""
    layout = SlotLayout(slots=64, web_processes=64, workers=workers, max_batch=4, signatures=signatures)
    batch_ms = {1: 2 * worker_ms, 4: 4 * worker_ms}
    report = reported(device, batch_ms=batch_ms, web_processes=web_processes)
    handle = EngineHandle(0, model, EngineFds(0, layout, 0, 0, (0, 0), 0, 0), report, Mock())
    return ServedModel(handle, Settings(), Metrics(), Mock(), Traffic())
