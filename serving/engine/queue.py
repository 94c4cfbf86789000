"""A worker's end of the work queue: which records it takes, and how long it waits for more.

Two pipes, interactive and bulk, of records of eight bytes. One `readv` takes whatever waits, up to a
full batch, straight into the worker's inbox in shared memory; the kernel never splits a record. The
inbox has two halves, so that a second batch can be taken while a device computes the first.
Batches are of one class of priority, and bulk is only taken where nothing interactive waits.
"""

import fcntl
import os
import select
import struct
import termios
import time

from serving.engine.memory import RECORD_BYTES, Memory, slot_of
from serving.settings import Settings


class WorkQueue:
    """Belongs to one worker."""

    def __init__(
        self, memory: Memory, index: int, fds: tuple[int, int], control_fd: int, settings: Settings
    ) -> None:
        self.cap = 1
        self._memory = memory
        self._index = index
        self._inbox = memory.inbox[index]
        self._inbox_bytes = self._inbox.cast("B")
        self._half = len(self._inbox) // 2
        self._start = 0
        """Where the half begins into which the next batch is taken."""

        self._empty = bytes(len(self._inbox_bytes))
        self._fds = fds
        self._control_fd = control_fd
        self._delay_s = settings.max_queue_delay_us / 1e6
        self._preferred = sorted(settings.preferred_batch_sizes)
        self._poll = select.poll()
        for fd in (*fds, control_fd):
            self._poll.register(fd, select.POLLIN)

    def clear(self) -> None:
        """Everything taken has been reported."""
        self._inbox_bytes[:] = self._empty

    def turn(self) -> None:
        """What was taken last is under way; everything before has been reported."""
        self._start = self._half - self._start
        first = self._start * RECORD_BYTES
        self._inbox_bytes[first : first + self._half * RECORD_BYTES] = bytes(self._half * RECORD_BYTES)

    def take(self, wait: bool = True) -> list[int] | None:
        """Waits for work; returns its records, which stand in the inbox, or None at the end.

        Without `wait` an empty list where nothing is there.
        """
        busy_since = self._memory.busy_since
        while True:
            busy_since[self._index] = time.monotonic()
            for fd in self._fds:
                if count := self._read(fd, 0, self._first_size(fd)):
                    if count < self.cap and self._delay_s and count not in self._preferred:
                        count = self._wait_for_more(fd, count)
                    return self._inbox[self._start : self._start + count].tolist()
            if not wait:
                return []
            busy_since[self._index] = 0
            events = self._poll.poll()
            if any(fd == self._control_fd for fd, _ in events):
                if not os.read(self._control_fd, 64):
                    return None
                self._memory.seen[self._index] = time.monotonic()  # that was all it wanted to know

    def _first_size(self, fd: int) -> int:
        """How many records to ask for: a preferred size where that many wait, else all that do."""
        if not self._preferred:
            return self.cap
        waiting = min(waiting_records(fd), self.cap)
        fitting = [size for size in self._preferred if size <= waiting]
        return fitting[-1] if fitting else self.cap

    def _wait_for_more(self, fd: int, count: int) -> int:
        """Tops the batch up until it is full, of a preferred size, or its first item waited enough."""
        end = self._memory.queued_at[slot_of(self._inbox[self._start])] + self._delay_s
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.register(self._control_fd, select.POLLIN)
        while count < self.cap and (left := end - time.monotonic()) > 0:
            events = poll.poll(left * 1000)
            if not events or any(ready == self._control_fd for ready, _ in events):
                break
            wanted = next((s for s in self._preferred if count < s <= self.cap), self.cap)
            count += self._read(fd, count, wanted - count)
            if count in self._preferred:
                break
        return count

    def _read(self, fd: int, offset: int, count: int) -> int:
        """Up to `count` records into the inbox from `offset` on; 0 when none waits."""
        first = self._start + offset
        place = self._inbox_bytes[first * RECORD_BYTES : (first + count) * RECORD_BYTES]
        try:
            return os.readv(fd, [place]) // RECORD_BYTES
        except BlockingIOError:
            return 0


def waiting_records(fd: int) -> int:
    """How many records a work pipe holds."""
    (size,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    return int(size) // RECORD_BYTES
