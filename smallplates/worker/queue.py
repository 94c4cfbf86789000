"""Work queue as a worker reads it: which records to take, and how long to wait for a fuller batch.

Two pipes, interactive and bulk, hold records of eight bytes. One `readv` takes waiting records straight
into the worker's inbox in shared memory; the kernel never splits a record. The inbox has two halves:
while the device computes the batch in one half, the worker reads the next batch into the other. All
items of a batch have the same priority, and bulk records are taken only if no interactive record waits.
Records that do not fit into the batch go back into the pipe. Called by `process.py` on the worker's main
thread.

All workers wait on the same two pipes. If the system supports it, a record wakes only one of them: the
idle worker with the lowest index, whose caches are warmest. If a worker dies between its wake-up and its
read, the record stays in the pipe and the supervisor makes the other workers look.
"""

import contextlib
import fcntl
import os
import platform
import re
import select
import struct
import termios
import time
from collections.abc import Iterable, Iterator, Sequence

from smallplates.engine.memory import RECORD_BYTES, Memory, send, slot_of
from smallplates.settings import Settings

WAKES_ANOTHER = (5, 7)
"""First Linux release in which a second record wakes another worker even if the worker woken by the
first record has not run yet."""


def exclusive_epoll(fds: Iterable[int]) -> "select.epoll | None":
    """Returns an epoll in which one worker waits for records; None if the kernel wakes all workers.

    The supervisor creates one for each worker, in the order in which idle workers are to be woken.
    Workers inherit their epoll, so a replacement keeps its predecessor's place.
    """
    linux = re.match(r"(\d+)\.(\d+)", platform.release())
    if linux is None or tuple(map(int, linux.groups())) < WAKES_ANOTHER:
        return None
    epoll = select.epoll()
    for fd in fds:
        epoll.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
    return epoll


class WorkQueue:
    """Takes batches of records for one worker; `cap` is the largest batch."""

    def __init__(
        self,
        memory: Memory,
        index: int,
        pipes: tuple[tuple[int, int], tuple[int, int]],
        control_fd: int,
        settings: Settings,
        epoll_fd: int | None = None,
    ) -> None:
        """`pipes` are the work pipes.

        Uses the epoll that `exclusive_epoll` created from their read ends, or a plain poll if there is
        none.
        """
        self.cap = 1
        self._memory = memory
        self._index = index
        self._inbox = memory.inbox[index]
        self._inbox_bytes = self._inbox.cast("B")
        self._half = len(self._inbox) // 2
        self._start = 0
        """Index at which the half for the next batch starts."""

        self._empty = bytes(len(self._inbox_bytes))
        self._fds, self._return_fds = zip(*pipes, strict=True)
        self._control_fd = control_fd
        self._pads = memory.layout.pads
        self._delay_s = settings.max_queue_delay_us / 1e6
        self._preferred = sorted(settings.preferred_batch_sizes)
        self._poll = poll_of(self._fds) if epoll_fd is None else select.epoll.fromfd(epoll_fd)
        self._poll.register(control_fd, select.POLLIN)  # has the same value as EPOLLIN

    def clear(self) -> None:
        """Empties the inbox; every record that was taken must have been reported."""
        self._inbox_bytes[:] = self._empty

    def swap_halves(self) -> None:
        """Keeps the last batch and empties the other half of the inbox for the next one.

        All records of earlier batches must have been reported.
        """
        self._start = self._half - self._start
        first = self._start * RECORD_BYTES
        self._inbox_bytes[first : first + self._half * RECORD_BYTES] = bytes(self._half * RECORD_BYTES)

    def take(self, wait: bool = True) -> list[int] | None:
        """Takes waiting records into the inbox and returns them: a batch, or more to choose from.

        If no record waits, waits for one or, without `wait`, returns an empty list. Returns None after
        the supervisor has closed the control pipe.
        """
        busy_since = self._memory.busy_since
        while True:
            busy_since[self._index] = time.monotonic()
            for fd in self._fds:
                if count := self._read(fd, 0, self._read_size(fd)):
                    if count < self.cap and self._delay_s and count not in self._preferred:
                        count = self._fill_batch(fd, count)
                    return self._inbox[self._start : self._start + count].tolist()
            if not wait:
                return []
            busy_since[self._index] = 0
            events = self._poll.poll()
            if any(fd == self._control_fd for fd, _ in events):
                if not os.read(self._control_fd, 64):
                    return None
                self._memory.heartbeat[self._index] = time.monotonic()  # the supervisor asked for it

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Locks out other workers while this one claims slots; the kernel frees a dead worker's lock."""
        fcntl.lockf(self._memory.fd, fcntl.LOCK_EX)
        yield
        fcntl.lockf(self._memory.fd, fcntl.LOCK_UN)

    def give_back(self, values: Sequence[int]) -> None:
        """Puts some of the records that were taken back into their pipe, for any worker.

        If this worker dies in between, they are both in the pipe and in its inbox, and are queued twice.
        So a worker computes a slot only after it has marked the slot in its turn.
        """
        if values:
            send(self._return_fds[self._memory.bulk[slot_of(values[0])]], *values)
        back = set(values)
        for place, value in enumerate(self._inbox.tolist()):
            if value in back:
                self._inbox[place] = 0

    def _read_size(self, fd: int) -> int:
        """Returns how many records to read: the largest preferred size that can be filled, else the cap.

        If items may be padded, all waiting records are read, so that the executor can choose items of
        similar size. The worker gives back those that it does not compute next.
        """
        if not self._preferred:
            return self._half if self._pads else self.cap
        count = min(count_records(fd), self.cap)
        return max((size for size in self._preferred if size <= count), default=self.cap)

    def _fill_batch(self, fd: int, count: int) -> int:
        """Reads more records after the first `count`, and returns their new number.

        Stops at a full batch, at a preferred size, or when the first item has waited for the full delay.
        """
        end = self._memory.queued_at[slot_of(self._inbox[self._start])] + self._delay_s
        poll = poll_of((fd, self._control_fd))
        while count < self.cap and (seconds := end - time.monotonic()) > 0:
            events = poll.poll(seconds * 1000)
            if not events or any(ready == self._control_fd for ready, _ in events):
                break
            size = next((size for size in self._preferred if count < size <= self.cap), self.cap)
            count += self._read(fd, count, size - count)
            if count in self._preferred:
                break
        return count

    def _read(self, fd: int, offset: int, count: int) -> int:
        """Reads up to `count` records to `offset` in the current half; returns the number read."""
        first = self._start + offset
        target = self._inbox_bytes[first * RECORD_BYTES : (first + count) * RECORD_BYTES]
        try:
            return os.readv(fd, [target]) // RECORD_BYTES
        except BlockingIOError:
            return 0


def poll_of(fds: Iterable[int]) -> "select.poll":
    """Returns a poll object that watches descriptors for reading."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return poll


def count_records(fd: int) -> int:
    """Returns the number of records in a work pipe."""
    (size,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    return int(size) // RECORD_BYTES
