"""Statistics of one engine: counts and durations of requests and batches since its start.

Every web process adds to its own rows in the shared memory, which needs no lock, and reads everybody's
rows. `EngineClient` counts batches, `inference/` counts requests, and the protocols report the totals.
Durations are whole nanoseconds. Everything here runs on the event loop.
"""

import time
from dataclasses import dataclass

from smallplates.engine.memory import PER_BATCH_SIZE, TOTALS, Memory


@dataclass(slots=True)  # not frozen: creating a frozen instance is slower, and every request creates one
class Timings:
    """Durations of a request's consecutive stages in seconds; their sum is the request's duration."""

    decode_s: float
    """From admission until the inputs are prepared."""

    queue_s: float
    """From then until a worker starts the first item."""

    infer_s: float
    """From then until the last item is computed."""

    output_s: float = 0.0
    """From then until the answer is complete."""

    admitted_at: float = 0.0
    """`time.monotonic()` at admission."""

    batch_size: int = 0
    """Size of the largest batch that contained an item of the request."""

    version: str = ""
    truncated: bool = False
    """Whether part of the request was ignored, such as the end of a long text."""

    tokens: int = 0
    """Tokens of all inputs of a model that takes texts, special tokens included, after truncation."""

    @property
    def total_s(self) -> float:
        """From admission until the answer is complete."""
        return self.decode_s + self.queue_s + self.infer_s + self.output_s


@dataclass
class Totals:
    """Totals of all requests of one signature, in the order of the numbers in a row."""

    last_inference_ms: int = 0
    """Time of the last batch in milliseconds since 1970; 0 if there was none."""

    inferences: int = 0
    """Items of the successful requests; a request has one or more."""

    successes: int = 0
    success_ns: int = 0
    failures: int = 0
    failure_ns: int = 0
    decode_ns: int = 0
    """For successful requests only; decode, queue, infer and output add up to `success_ns`."""

    queue_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0


@dataclass
class BatchTotals:
    """Totals of all batches of one size, in the order of the numbers in a row."""

    executions: int = 0
    decode_ns: int = 0  # sum over the items of these batches
    infer_ns: int = 0
    output_ns: int = 0


LAST, INFERENCES, SUCCESSES, SUCCESS_NS, FAILURES, FAILURE_NS = range(6)
DECODE_NS, QUEUE_NS, INFER_NS, OUTPUT_NS = range(6, TOTALS)
BATCH_EXECUTIONS, BATCH_DECODE_NS, BATCH_INFER_NS, BATCH_OUTPUT_NS = range(PER_BATCH_SIZE)


class Statistics:
    """Adds to one web process's rows and reads all rows; `signature` is an index."""

    def __init__(self, memory: Memory, web_process: int) -> None:
        self._rows = memory.statistics
        self._own = memory.statistics[web_process]
        self._max_batch = memory.layout.max_batch

    def count_batch(self, signature: int, batch_size: int, infer_s: float) -> None:
        """Counts a computed batch."""
        row = self._own[signature]
        row[LAST] = time.time_ns() // 1_000_000
        offset = batch_offset(batch_size)
        row[offset + BATCH_EXECUTIONS] += 1
        row[offset + BATCH_INFER_NS] += nanoseconds(infer_s)

    def count_success(self, signature: int, timings: Timings, batch_sizes: list[int]) -> None:
        """Counts a successful request; `batch_sizes` has the batch size of each item."""
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

    def count_failure(self, signature: int, seconds: float) -> None:
        """Counts a request that was refused, expired, cancelled or failed after `seconds`."""
        row = self._own[signature]
        row[FAILURES] += 1
        row[FAILURE_NS] += nanoseconds(seconds)

    def totals(self, signature: int) -> Totals:
        """Returns the totals over all web processes."""
        columns = [[row[place] for row in self._rows_of(signature)] for place in range(TOTALS)]
        return Totals(max(columns[LAST]), *(sum(column) for column in columns[1:]))

    def by_batch_size(self, signature: int) -> dict[int, BatchTotals]:
        """Returns the totals over all web processes for each batch size that has been computed."""
        totals = {}
        for batch_size in range(1, self._max_batch + 1):
            offset = batch_offset(batch_size)
            places = range(offset, offset + PER_BATCH_SIZE)
            batch = BatchTotals(*(sum(row[at] for row in self._rows_of(signature)) for at in places))
            if batch.executions:
                totals[batch_size] = batch
        return totals

    def _rows_of(self, signature: int) -> list[memoryview]:
        return [rows[signature] for rows in self._rows]


def batch_offset(batch_size: int) -> int:
    """Returns the index of a batch size's first number in a row; batch sizes start at 1."""
    return TOTALS + PER_BATCH_SIZE * (batch_size - 1)


def nanoseconds(seconds: float) -> int:
    """Returns whole nanoseconds, at least 0: clock readings of two processes may be out of order."""
    return max(0, int(seconds * 1e9))
