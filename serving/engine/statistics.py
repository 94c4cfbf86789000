"""What was asked of the engine and how long it took, since its version went into service.

Each web process adds to rows of its own in the shared mapping, so that no lock is needed and any of
them can answer for all. `EngineClient` counts batches, `classifier.py` requests; `frontends/v2.py` and
its siblings tell. Durations are whole nanoseconds.
"""

import time
from dataclasses import dataclass

from serving.engine.memory import PER_BATCH_SIZE, TOTALS, Memory, Signature


@dataclass(slots=True)  # not frozen: that costs time for each request
class Timings:
    """Seconds of one request, one after the other: together they are all of its time."""

    decode_s: float
    """From admission until its inputs stand in their slots."""

    queue_s: float
    """Until a worker begins with the first of them."""

    infer_s: float
    """Until the last of them is computed."""

    output_s: float = 0.0
    """Until the answer is there."""


@dataclass
class Totals:
    """Of all requests for one kind of input; the fields stand in the row in this order."""

    last_inference_ms: int = 0
    """Milliseconds since 1970 when a batch was last answered; 0: never."""

    inferences: int = 0
    """Inputs of the successful requests: each has one or more."""

    successes: int = 0
    success_ns: int = 0
    failures: int = 0
    failure_ns: int = 0
    decode_ns: int = 0
    """This and the next three: of the successful requests, whose `success_ns` is their sum."""

    queue_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0


@dataclass
class BatchTotals:
    """Of all executions of one batch size; the fields stand in the row in this order."""

    executions: int = 0
    decode_ns: int = 0
    """Of the inputs that were computed in these batches, each one's own."""

    infer_ns: int = 0
    output_ns: int = 0


LAST, INFERENCES, SUCCESSES, SUCCESS_NS, FAILURES, FAILURE_NS = range(6)
DECODE_NS, QUEUE_NS, INFER_NS, OUTPUT_NS = range(6, TOTALS)
BATCH_EXECUTIONS, BATCH_DECODE_NS, BATCH_INFER_NS, BATCH_OUTPUT_NS = range(PER_BATCH_SIZE)


class Statistics:
    """Adds to one web process's rows; reads those of all."""

    def __init__(self, memory: Memory, frontend: int) -> None:
        self._rows = memory.statistics
        self._own = memory.statistics[frontend]
        self._max_batch = memory.layout.max_batch

    def executed(self, kind: Signature, batch_size: int, is_batch_leader: bool, infer_s: float) -> None:
        """One input was computed; its batch counts with the one that leads it."""
        if is_batch_leader:
            row = self._own[kind]
            row[LAST] = time.time_ns() // 1_000_000
            place = batch_place(batch_size)
            row[place + BATCH_EXECUTIONS] += 1
            row[place + BATCH_INFER_NS] += nanoseconds(infer_s)

    def succeeded(self, kind: Signature, stages: Timings, batch_sizes: list[int]) -> None:
        """One request was answered; its inputs were computed in batches of these sizes."""
        row = self._own[kind]
        decode, output = nanoseconds(stages.decode_s), nanoseconds(stages.output_s)
        queue, infer = nanoseconds(stages.queue_s), nanoseconds(stages.infer_s)
        row[INFERENCES] += len(batch_sizes)
        row[SUCCESSES] += 1
        row[SUCCESS_NS] += decode + queue + infer + output
        row[DECODE_NS] += decode
        row[QUEUE_NS] += queue
        row[INFER_NS] += infer
        row[OUTPUT_NS] += output
        for batch_size in batch_sizes:
            place = batch_place(batch_size)
            row[place + BATCH_DECODE_NS] += decode // len(batch_sizes)
            row[place + BATCH_OUTPUT_NS] += output // len(batch_sizes)

    def failed(self, kind: Signature, seconds: float) -> None:
        """One request was refused, expired, cancelled, or failed, after this time."""
        row = self._own[kind]
        row[FAILURES] += 1
        row[FAILURE_NS] += nanoseconds(seconds)

    def totals(self, kind: Signature) -> Totals:
        """Over all web processes."""
        columns = [[row[place] for row in self._of(kind)] for place in range(TOTALS)]
        return Totals(max(columns[LAST]), *(sum(column) for column in columns[1:]))

    def by_batch_size(self, kind: Signature) -> dict[int, BatchTotals]:
        """Over all web processes, for each batch size that was computed."""
        found = {}
        for batch_size in range(1, self._max_batch + 1):
            place = batch_place(batch_size)
            places = range(place, place + PER_BATCH_SIZE)
            batch = BatchTotals(*(sum(row[at] for row in self._of(kind)) for at in places))
            if batch.executions:
                found[batch_size] = batch
        return found

    def _of(self, kind: Signature) -> list[memoryview]:
        return [rows[kind] for rows in self._rows]


def batch_place(batch_size: int) -> int:
    """Where the numbers of a batch size, from 1 on, begin in a row."""
    return TOTALS + PER_BATCH_SIZE * (batch_size - 1)


def nanoseconds(seconds: float) -> int:
    """Never negative: clocks of two processes may be read in either order."""
    return max(0, int(seconds * 1e9))
