"""One model version in service: from a task's inputs or a client's tensors to the answer.

The steps are: acquire slots, decode the body (in the protocols), preprocess (on the event loop or a
thread), pass the items to the workers, await their outputs, postprocess. A request holds its slots from
the first step to its answer, so that overload is detected before any work is done. Created by
`service.py`, called by the protocols.
"""

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from smallplates.engine import gpu_monitor
from smallplates.engine.client import EngineClient, ItemResult
from smallplates.engine.statistics import BatchTotals, Timings, Totals
from smallplates.errors import (
    ImageTooLargeError,
    InvalidRequestError,
    NotSupportedError,
    ServingError,
    UnavailableError,
)
from smallplates.models.tensors import Array, Signature
from smallplates.settings import Settings
from smallplates.supervision.planner import task_of
from smallplates.supervision.registry import EngineHandle
from smallplates.system import cpus
from smallplates.tasks.base import Candidate, Fields, Prepared, Task, result_or_error
from smallplates.web.inference.admission import Admission, Turns, Waits
from smallplates.web.inference.thread_pool import LARGE_BYTES, ThreadPool
from smallplates.web.metrics import Metrics, ModelMetrics

T = TypeVar("T")
SLOW = 750.0  # inputs per second; an event loop decodes more 400x300 images than that
THREADED = 0.65  # share of what the cores could do that is left if threads decode and wait for the GIL
MIXED_SECONDS = 10.0
SCALARS = (str, bytes, int, float)
TOGETHER = 32  # fewest texts to prepare at a time, so that threads change seldom
WAKE_MS = 0.2  # of computing, below which a second worker is not woken
LARGE_ANSWER = 256 * 1024  # bytes of tensors; as JSON 64 K numbers take 5 ms
SLICE_S = 0.02  # of postprocessing; other work waits as long for the thread
QUICK_SECONDS = 0.0003  # of CPU time: under half of a 400x300 image's, ten times a short text's


class Input(NamedTuple):
    """One input of a request; `read` may be slow enough to run on a thread."""

    size: int
    """Number of bytes that the client sent."""

    read: Callable[[], Fields]
    """Returns the task's fields. Raises RequestError."""


@dataclass(frozen=True)
class RequestOptions:
    """An admitted request's time limit and priority."""

    timeout_ms: int
    bulk: bool = False  # whether it yields to all interactive requests

    def within(self, microseconds: int) -> "RequestOptions":
        """Returns the options for a time limit given in the body; 0 means no limit."""
        if not microseconds:
            return self
        return RequestOptions(max(1, min(self.timeout_ms, microseconds // 1000)), self.bulk)


@dataclass(slots=True)
class Answer:
    """A model's answer to one request."""

    task: Task  # of the version that computed the answer
    candidates: list[list[Candidate]]  # for each input, best first; empty for tensors
    arrays: list[Array]  # [items, *shape] for each output of the tensor signature; empty for requests
    timings: Timings
    is_large: bool = False  # whether it takes so long to format that a thread does


class Traffic:
    """Tracks whether requests are for one model or for several; one instance per web process.

    On an event loop that prepares up to a whole batch of pictures in a row, another model's requests
    wait for all of them.
    """

    def __init__(self) -> None:
        self._latest: str | None = None
        self._changed_at = -MIXED_SECONDS

    def note(self, model: str, now: float) -> None:
        """Notes a request for `model` at `now`, in seconds of `time.monotonic`."""
        if model != self._latest:
            if self._latest is not None:
                self._changed_at = now
            self._latest = model

    def is_mixed(self, now: float) -> bool:
        """Returns whether requests changed from one model to another in the last ten seconds."""
        return now - self._changed_at < MIXED_SECONDS


class ServedModel:
    """A model version in service, with its description, task and engine."""

    def __init__(
        self,
        handle: EngineHandle,
        settings: Settings,
        metrics: Metrics,
        threads: ThreadPool,
        traffic: Traffic,
    ) -> None:
        self.handle = handle
        self.description = handle.model.description
        self.report = handle.report
        self.signatures = handle.fds.layout.signatures
        self.workers = handle.fds.layout.workers
        self.settings = handle.model.settings(settings)
        self.created = int(handle.model.path.stat().st_mtime)
        """When the folder changed, in seconds since 1970; it may be gone before the model is."""

        most_ms = self.settings.max_wait_ms
        self._waits = Waits(most_ms), Waits(most_ms)  # interactive, bulk
        self._threads = threads
        self._traffic = traffic
        self._preparation_s = 0.0  # moving average of the CPU time that preparing an input takes
        self._turns = Turns()
        self._largest_body = settings.max_body_bytes
        self._requests = 0
        self._left: asyncio.Event | None = None
        self.task = task_of(handle.model, settings, self.report.schemas, self.signatures)
        self._metrics = ModelMetrics(metrics, self.description.name, self.task.labels)
        cores, on_gpu = cpus.usable(), self.report.on_gpu
        fastest = max(size / ms for size, ms in self.report.batch_ms.items())
        limits = settings.max_answer_bytes, max(1, int(WAKE_MS * fastest))
        self.client = EngineClient(handle.fds, self._metrics.observe_item, *limits)
        wanted = 1000 * fastest * self.workers  # items per second, as measured at warm-up
        if not on_gpu:  # web processes and workers share the cores
            wanted = THREADED / (1 / wanted + 1 / (SLOW * cores))
        self.web_processes = self.report.web_processes
        self.prepares_on_event_loop: bool = wanted <= SLOW * self.web_processes or (
            on_gpu and self.web_processes >= cores - self.workers
        )
        """Whether the event loop prepares cheap inputs: if more threads would not get more done, or if a
        GPU computes and every core already has a web process."""

        self.largest_request = settings.max_request_items
        """Maximum number of inputs in one request."""

    # life cycle

    def __enter__(self) -> Self:
        """Keeps the model open for a request that uses it, even if it is replaced meanwhile."""
        self._requests += 1
        return self

    def __exit__(self, *exception: object) -> None:
        """Marks the request as finished."""
        self._requests -= 1
        if self._left is not None and not self._requests:
            self._left.set()

    async def close(self) -> None:
        """Releases the engine once every request that uses this model has been answered."""
        if self._requests:
            self._left = asyncio.Event()
            await self._left.wait()
        await self.client.drain()
        self.release()

    def release(self) -> None:
        """Releases the engine at once; requests without an answer fail."""
        self.client.close()
        self.handle.release()

    def check_open(self) -> None:
        """Raises UnavailableError if no worker can start."""
        if self.client.is_down:
            raise UnavailableError("no worker is ready")

    def check_ready(self) -> None:
        """Raises UnavailableError unless a worker is ready, or the model is asleep."""
        self.check_open()
        if not (self.ready_workers or self.asleep):
            raise UnavailableError("no worker is ready")

    def refuse_if_full(self, options: RequestOptions, signature: int = 0) -> None:
        """Raises RetryableError, before the body is read, if a request cannot be served in time."""
        self.check_open()
        try:
            self.client.check_free(options.bulk)
            self._waits[options.bulk].check(self.client.ahead, options.timeout_ms)
        except ServingError:
            self.client.statistics.count_failure(signature, 0)
            raise

    # description

    @property
    def ready_workers(self) -> int:
        """Number of workers that are ready to compute."""
        return self.client.memory.ready_workers[0]

    @property
    def asleep(self) -> str:
        """What clients are told of a model that the next request loads; empty for other models."""
        memory = self.client.memory
        return f"asleep: the first answer takes {memory.load_s[0]:.1f} s" if memory.is_asleep[0] else ""

    def describe(self) -> dict[str, Any]:
        """Returns the content of `GET /model`."""
        fields = {"name", "version", "description", "task", "labels", "image"}
        fields |= {"thresholds", "accuracy"}
        fields |= {name for name in ("text", "embedding") if getattr(self.description, name)}
        report, memory, task = self.report, self.client.memory, self.task
        first = self.signatures[0]
        return {
            **self.description.model_dump(include=fields),
            "title": self.description.title,
            "sha256": self.handle.model.digest or None,
            "request_schema": None if task.request_signature is None else task.request_schema,
            "answer_schema": None if task.request_signature is None else task.answer_schema,
            "example": task.json_example,
            "limits": {"request_bytes": self._largest_body, **task.limits},
            **asdict(report.info),
            "instances": self.ready_workers,
            "workers": memory.serving_workers[0],
            "threads": report.threads,
            "layout_reason": report.layout_reason,
            "measured_at": report.measured_at,
            "web_processes": self.web_processes,
            "web_processes_reason": report.web_processes_reason,
            "max_batch_size": memory.smallest_cap or report.batch_cap,
            "batched": first.is_batched,
            "batch_note": first.batch_note or report.info.batch_note or None,
            "batch_ms": {str(size): ms for size, ms in report.batch_ms.items()},
            "idle_threads": report.single_request_threads,
            "gpus": [asdict(figures) for figures in gpu_monitor.figures(memory)],
        }

    def statistics(self, signature: int) -> tuple[Totals, dict[int, BatchTotals]]:
        """Returns totals over all requests, and by batch size, since the version went into service."""
        counted = self.client.statistics
        return counted.totals(signature), counted.by_batch_size(signature)

    # inference

    def admit(self, options: RequestOptions, signature: int = 0) -> Admission:
        """Admits a request whose body has arrived; the deadline cuts off the context manager's block.

        Raises UnavailableError; the block also raises OverloadedError and DeadlineExceededError.
        """
        self.check_open()
        self._traffic.note(self.description.name, time.monotonic())
        waits, limits = self._waits[options.bulk], (options.timeout_ms, options.bulk)
        return Admission(self.client, waits, self._metrics, *limits, signature)

    async def predict(
        self, inputs: Sequence[Input], top_k: int, options: RequestOptions, admission: Admission
    ) -> Answer:
        """Returns the best candidates for each input; the inputs are admitted together or not at all.

        If there are many inputs, only those that the engine takes next are prepared, and of equal texts
        only the first. If one input fails, the whole request fails. Cancelling the asyncio task frees
        the slots; items that no worker has started are never computed. Raises what `Input.read` and the
        task raise, InvalidRequestError for more than `largest_request` inputs, OverloadedError,
        UnavailableError, DeadlineExceededError, InternalError or WorkerCrashedError.
        """
        check_count(len(inputs), self.largest_request)
        likely_items = sum(self.task.likely_items(source.size) for source in inputs)
        admission.begin(self.task.request_signature or 0, likely_items, options.timeout_ms)
        different, places, part = await self._first_part(inputs, options.bulk)
        prepared: list[Prepared] = []
        while part:
            prepared += part
            items = [item for request in part for item in request.items]
            left = len(different) - len(prepared)
            await admission.submit(items, left)
            for request in part:
                request.items = [()] * len(request.items)  # the slots have the arrays now
            part = await self._next_part(different, len(prepared), options.bulk) if left else []
        results = await admission.results()
        is_large = len(inputs) > 1 or len(results) > 1 or not prepared[0].runs_inline
        most = min(top_k, self.task.most_candidates)
        candidates = await self._postprocess(prepared, results, most, is_large, options.bulk)
        truncated = any(request.truncated for request in prepared)
        timings = admission.finish(results, self.description.version, truncated)
        timings.tokens = sum(prepared[place].tokens for place in places)
        answers = [candidates[place] for place in places]
        self._metrics.count_predictions(answers)
        return Answer(self.task, answers, [], timings, is_large)

    async def infer(
        self, inputs: Sequence[Array], options: RequestOptions, admission: Admission
    ) -> Answer:
        """Computes the network's outputs for tensors; `inputs` has an array [N, *shape] for each input.

        The client chose the numbers, so the outputs may be infinite or NaN. Raises InvalidTensorError
        for wrong types or shapes, InvalidRequestError for items whose outputs differ in size,
        NotSupportedError if the model does not take tensors, and otherwise what `predict` raises.
        """
        index = self.task.tensor_signature
        if index is None:
            raise NotSupportedError(f"{self.description.name} does not take tensors")
        check_count(len(inputs[0]), self.largest_request)
        admission.begin(index, len(inputs[0]), options.timeout_ms)
        await admission.submit(self.signatures[index].items(inputs))
        results = await admission.results()
        work = partial(stack, self.signatures[index], results)
        size = len(results) * sum(array.nbytes for array in results[0].outputs)
        arrays = await self._threads.run(work, options.bulk) if size > LARGE_BYTES else work()
        timings = admission.finish(results, self.description.version)
        return Answer(self.task, [], arrays, timings, size > LARGE_ANSWER)

    async def _first_part(
        self, inputs: Sequence[Input], bulk: bool
    ) -> tuple[dict[int, Input], list[int], list[Prepared]]:
        """Returns the result of `without_repeats`, and the first part, as `_next_part` does."""
        if self.task.prepares_together and len(inputs) > 1:
            large = self._are_large(inputs)
            return await self._threads.run(lambda: self._first_together(inputs), bulk, large)
        if len(inputs) > 1 and self.task.large_bytes < math.inf:
            check = self.task.check_all
            await self._threads.run(lambda: check([each.read() for each in inputs]), bulk)
        every = dict(enumerate(inputs))
        return every, [*every], await self._next_part(every, 0, bulk)

    async def _next_part(self, inputs: Mapping[int, Input], done: int, bulk: bool) -> list[Prepared]:
        """Prepares those inputs that the engine takes next; `done` is the number of earlier ones.

        The keys of `inputs` are their indices in the request.
        """
        if self.task.prepares_together and len(inputs) > 1:
            large = self._are_large(inputs.values())
            return await self._threads.run(lambda: self._together(inputs, done), bulk, large)
        if len(inputs) == 1:
            (source,) = inputs.values()
            return [await self._preprocess(source, bulk)]
        part = dict(itertools.islice(inputs.items(), done, done + self._most_queued))
        work = (self._preprocess_on_thread(source, bulk) for source in part.values())
        return list(all_or_error(await asyncio.gather(*work, return_exceptions=True), [*part]))

    def _first_together(
        self, inputs: Sequence[Input]
    ) -> tuple[dict[int, Input], list[int], list[Prepared]]:
        """See `_first_part`; for a thread."""
        different, places = without_repeats(inputs, self.task.check_all)
        return different, places, self._together(different, 0)

    def _together(self, inputs: Mapping[int, Input], done: int) -> list[Prepared]:
        """See `_next_part`; for a thread. Measures the time that preparing one input takes."""
        started = time.perf_counter()
        part = dict(itertools.islice(inputs.items(), done, done + max(TOGETHER, self._most_queued)))
        results = self.task.preprocess_all([source.read() for source in part.values()])
        prepared = list(all_or_error(results, [*part]))
        seconds = (time.perf_counter() - started) / len(part)
        for _ in part:
            self._metrics.decode.observe(seconds)
        return prepared

    @property
    def _most_queued(self) -> int:
        return self.client.most_queued(self.task.request_signature or 0)

    async def _preprocess(self, source: Input, bulk: bool) -> Prepared:
        """Prepares an input's items: on the event loop if that is cheap, else on a thread.

        Using the event loop saves two thread switches. It prepares small inputs that the task considers
        cheap if they took next to no time so far, or if the workers are slow or idle enough, but then
        not if other models get requests, too. If requests may be refused, they take turns.
        """
        is_quick = on_event_loop = self._preparation_s < QUICK_SECONDS
        if not is_quick and not self._traffic.is_mixed(time.monotonic()):
            on_event_loop = self.prepares_on_event_loop or self.client.memory.counts.alone
        if source.size <= self.task.inline_limit and not bulk and on_event_loop:
            if not (is_quick or self.client.free_slots(bulk=True)):
                await self._turns.wait(self._preparation_s)
            fields = source.read()
            if self.task.is_cheap(fields):
                return self._prepare(fields)
            source = Input(source.size, lambda: fields)
        return await self._preprocess_on_thread(source, bulk)

    async def _preprocess_on_thread(self, source: Input, bulk: bool) -> Prepared:
        if not self._are_large([source]):
            with suppress(ImageTooLargeError):
                return await self._threads.run(lambda: self._prepare(source.read(), True), bulk)
        return await self._threads.run(lambda: self._prepare(source.read()), bulk, large=True)

    def _are_large(self, inputs: Iterable[Input]) -> bool:
        """Returns whether small inputs must not wait for these, as far as their bytes tell."""
        return max(source.size for source in inputs) > self.task.large_bytes

    def _prepare(self, fields: Fields, only_small: bool = False) -> Prepared:
        """Returns an input's items; measures the time that preparing them takes."""
        started, cpu_started = time.perf_counter(), time.thread_time()
        self.task.check_all([fields])
        prepared = (self.task.preprocess_small if only_small else self.task.preprocess)(fields)
        self._preparation_s += (time.thread_time() - cpu_started - self._preparation_s) / 8
        self._metrics.decode.observe(time.perf_counter() - started)
        return prepared

    async def _postprocess(
        self,
        prepared: Sequence[Prepared],
        results: Sequence[ItemResult],
        top_k: int,
        on_thread: bool,
        bulk: bool,
    ) -> list[list[Candidate]]:
        """Returns each input's candidates.

        A thread works for SLICE_S at a time, so that other requests have their turn. It also frees what
        is no longer needed, which takes time, too.
        """
        candidates: list[list[Candidate]] = []
        requests, items = iter(prepared), iter(results)

        def work(until: float = math.inf) -> None:
            for request in requests:
                own = [*itertools.islice(items, len(request.items))]
                outputs = [result.outputs for result in own]
                candidates.append(self.task.postprocess(request, outputs, top_k))
                request.context = None
                for result in own:
                    result.outputs = []
                if time.perf_counter() > until:
                    break

        if not on_thread:
            work()
        while len(candidates) < len(prepared):
            await self._threads.run(lambda: work(time.perf_counter() + SLICE_S), bulk)
        return candidates


def without_repeats(
    inputs: Sequence[Input], check_all: Callable[[Sequence[Fields]], None]
) -> tuple[dict[int, Input], list[int]]:
    """Returns inputs by their indices, without those that are equal to others, and each input's place.

    Lists are equal if they are the same object, as are those of a field that all inputs share. Raises
    RequestError.
    """
    results = [result_or_error(source.read) for source in inputs]
    contents = list(all_or_error(results, range(len(inputs))))
    check_all(contents)
    firsts: dict[tuple[Any, ...], int] = {}
    indices = [firsts.setdefault(identity(fields), index) for index, fields in enumerate(contents)]
    order = {index: place for place, index in enumerate(firsts.values())}
    return {index: inputs[index] for index in order}, [order[index] for index in indices]


def identity(fields: Fields) -> tuple[Any, ...]:
    """Returns what is the same for equal fields, without a copy of their texts."""
    pairs = fields.items()
    return tuple((name, value if isinstance(value, SCALARS) else id(value)) for name, value in pairs)


def stack(signature: Signature, results: Sequence[ItemResult]) -> list[Array]:
    """Returns an array [items, *shape] for each output. Raises InvalidRequestError if sizes differ."""
    columns = list(zip(*(result.outputs for result in results), strict=True))
    for result in results:
        result.outputs = []  # a thread that stacks the rows frees them, too
    for spec, column in zip(signature.outputs, columns, strict=True):
        if len({array.shape for array in column}) > 1:
            raise InvalidRequestError(
                f"{spec.name} differs in size between items: send each in its own request"
            )
    if len(results) == 1:
        return [array[np.newaxis] for (array,) in columns]
    return [np.stack(column) for column in columns]


def check_count(count: int, most: int) -> None:
    """Raises InvalidRequestError unless the number of inputs is from 1 to `most`."""
    if not 1 <= count <= most:
        raise InvalidRequestError(
            f"one request may have 1 to {most} inputs (SERVING_MAX_REQUEST_ITEMS), not {count}"
        )


def all_or_error(results: Sequence[T | BaseException], indices: Sequence[int]) -> Iterator[T]:
    """Yields the results of batch elements. Raises the first error, with its index in front."""
    for index, result in zip(indices, results, strict=True):
        if isinstance(result, BaseException):
            if isinstance(result, ServingError):
                result.detail = f"element {index}: {result.detail}"
            try:
                raise result
            finally:  # breaks the reference cycle between traceback and exception
                del result, results
        yield result
