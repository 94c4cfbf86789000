"""Statistics of one engine: counts and durations of requests and batches since it went into service.

Every frontend adds to rows of its own in the shared memory, which needs no lock, and reads the rows of
all. `EngineClient` counts batches, `inference/` counts requests, the protocols report the totals.
Durations are whole nanoseconds. Everything runs on the event loop.
"""

import time
from dataclasses import dataclass

from serving.engine.memory import PER_BATCH_SIZE, TOTALS, Memory


@dataclass(slots=True)  # not frozen: that costs time in every request
class Timings:
    """Durations of one request's consecutive stages, in seconds; their sum is the request's time."""

    decode_s: float
    """From admission until the inputs are in their slots."""

    queue_s: float
    """From there until a worker starts the first input."""

    infer_s: float
    """From there until the last input is computed."""

    output_s: float = 0.0
    """From there until the answer is made."""

    admitted_at: float = 0.0
    """time.monotonic() at admission."""

    batch_size: int = 0
    """Inputs in the largest of the batches that had one of the request's."""

    version: str = ""
    truncated: bool = False
    """Whether something of the request was left out, such as the end of a long text."""


@dataclass
class Totals:
    """Totals of all requests of one signature, in the order of a row's numbers."""

    last_inference_ms: int = 0
    """Time of the last computed batch, in milliseconds since 1970; 0: never."""

    inferences: int = 0
    """Inputs of the successful requests; a request has one or more."""

    successes: int = 0
    success_ns: int = 0
    failures: int = 0
    failure_ns: int = 0
    decode_ns: int = 0
    """Successful requests only; decode, queue, infer and output add up to `success_ns`."""

    queue_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0


@dataclass
class BatchTotals:
    """Totals of all batches of one size, in the order of a row's numbers."""

    executions: int = 0
    decode_ns: int = 0
    """Sum over the inputs of these batches."""

    infer_ns: int = 0
    output_ns: int = 0


LAST, INFERENCES, SUCCESSES, SUCCESS_NS, FAILURES, FAILURE_NS = range(6)
DECODE_NS, QUEUE_NS, INFER_NS, OUTPUT_NS = range(6, TOTALS)
BATCH_EXECUTIONS, BATCH_DECODE_NS, BATCH_INFER_NS, BATCH_OUTPUT_NS = range(PER_BATCH_SIZE)


class Statistics:
    """Adds to one frontend's rows and reads the rows of all frontends; signatures are indices."""

    def __init__(self, memory: Memory, frontend: int) -> None:
        self._rows = memory.statistics
        self._own = memory.statistics[frontend]
        self._max_batch = memory.layout.max_batch

    def executed(self, signature: int, batch_size: int, is_batch_leader: bool, infer_s: float) -> None:
        """Counts the batch of an input that was computed, if the input is the batch's leader."""
        if is_batch_leader:
            row = self._own[signature]
            row[LAST] = time.time_ns() // 1_000_000
            offset = batch_offset(batch_size)
            row[offset + BATCH_EXECUTIONS] += 1
            row[offset + BATCH_INFER_NS] += nanoseconds(infer_s)

    def succeeded(self, signature: int, timings: Timings, batch_sizes: list[int]) -> None:
        """Counts an answered request; `batch_sizes` has the size of each input's batch."""
        row = self._own[signature]
        decode, output = nanoseconds(timings.decode_s), nanoseconds(timings.output_s)
        queue, infer = nanoseconds(timings.queue_s), nanoseconds(timings.infer_s)
        row[INFERENCES] += len(batch_sizes)
        row[SUCCESSES] += 1
        row[SUCCESS_NS] += decode + queue + infer + output
        row[DECODE_NS] += decode
        row[QUEUE_NS] += queue
        row[INFER_NS] += infer
        row[OUTPUT_NS] += output
        for batch_size in batch_sizes:
            offset = batch_offset(batch_size)
            row[offset + BATCH_DECODE_NS] += decode // len(batch_sizes)
            row[offset + BATCH_OUTPUT_NS] += output // len(batch_sizes)

    def failed(self, signature: int, seconds: float) -> None:
        """Counts a request that was refused, expired, cancelled or failed after this time."""
        row = self._own[signature]
        row[FAILURES] += 1
        row[FAILURE_NS] += nanoseconds(seconds)

    def totals(self, signature: int) -> Totals:
        """Returns the totals over all frontends."""
        columns = [[row[place] for row in self._rows_of(signature)] for place in range(TOTALS)]
        return Totals(max(columns[LAST]), *(sum(column) for column in columns[1:]))

    def by_batch_size(self, signature: int) -> dict[int, BatchTotals]:
        """Returns the totals over all frontends for each batch size that was computed."""
        found = {}
        for batch_size in range(1, self._max_batch + 1):
            offset = batch_offset(batch_size)
            places = range(offset, offset + PER_BATCH_SIZE)
            batch = BatchTotals(*(sum(row[at] for row in self._rows_of(signature)) for at in places))
            if batch.executions:
                found[batch_size] = batch
        return found

    def _rows_of(self, signature: int) -> list[memoryview]:
        return [rows[signature] for rows in self._rows]


def batch_offset(batch_size: int) -> int:
    """Returns the index in a row of a batch size's first number; sizes begin with 1."""
    return TOTALS + PER_BATCH_SIZE * (batch_size - 1)


def nanoseconds(seconds: float) -> int:
    """Returns whole nanoseconds, at least 0: two processes may read the clock in either order."""
    return max(0, int(seconds * 1e9))
