"""Work queue as a worker reads it: which records to take, and how long to wait for a fuller batch.

Two pipes, interactive and bulk, hold records of eight bytes. One `readv` takes all waiting records, up
to a full batch, straight into the worker's inbox in shared memory; the kernel never splits a record. The
inbox has two halves: a second batch is taken into one while the device computes the batch in the other.
A batch has one class of priority, and bulk is taken only if no interactive record waits.
Called by `worker.py` on the worker's main thread.

All workers wait on the same two pipes. Where the system can, a record wakes one of them: the idle worker
of the lowest index, whose caches are the warmest. A worker that dies between its wake-up and its read
leaves the record in the pipe; the supervisor then makes the others look.
"""

import fcntl
import os
import platform
import re
import select
import struct
import termios
import time
from collections.abc import Iterable

from serving.engine.memory import RECORD_BYTES, Memory, slot_of
from serving.settings import Settings

WAKES_ANOTHER = (5, 7)
"""First Linux that wakes another worker by a second record before the first one has got its core."""


def exclusive_epoll(fds: Iterable[int]) -> "select.epoll | None":
    """Returns an epoll in which one worker waits for records; None where a record wakes all workers.

    The supervisor makes one for each worker, in the order in which idle workers are woken. Workers
    inherit them, so a worker that is replaced keeps its place.
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
        fds: tuple[int, int],
        control_fd: int,
        settings: Settings,
        epoll_fd: int | None = None,
    ) -> None:
        """Waits in the epoll that `exclusive_epoll` has made of `fds`, or without one in a poll."""
        self.cap = 1
        self._memory = memory
        self._index = index
        self._inbox = memory.inbox[index]
        self._inbox_bytes = self._inbox.cast("B")
        self._half = len(self._inbox) // 2
        self._start = 0
        """First index of the half that the next batch is read into."""

        self._empty = bytes(len(self._inbox_bytes))
        self._fds = fds
        self._control_fd = control_fd
        self._pads = memory.layout.pads
        self._delay_s = settings.max_queue_delay_us / 1e6
        self._preferred = sorted(settings.preferred_batch_sizes)
        self._poll = poll_of(fds) if epoll_fd is None else select.epoll.fromfd(epoll_fd)
        self._poll.register(control_fd, select.POLLIN)  # the same number as EPOLLIN

    def clear(self) -> None:
        """Empties the inbox; every record that was taken must have been reported."""
        self._inbox_bytes[:] = self._empty

    def swap_halves(self) -> None:
        """Keeps the batch that was taken last, and empties the other half for the next batch.

        Every earlier record must have been reported.
        """
        self._start = self._half - self._start
        first = self._start * RECORD_BYTES
        self._inbox_bytes[first : first + self._half * RECORD_BYTES] = bytes(self._half * RECORD_BYTES)

    def take(self, wait: bool = True) -> list[int] | None:
        """Takes the records of one batch into the inbox and returns them.

        Waits until there is one; without `wait` returns an empty list instead. Returns None after the
        supervisor has closed the control pipe.
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
                self._memory.heartbeat[self._index] = time.monotonic()  # it asked for a heartbeat

    def _read_size(self, fd: int) -> int:
        """Returns how many records to read: the largest preferred size that waits, else the cap.

        Items that may be padded are read for up to two batches, out of which the executor makes some of
        similar sizes; but only this worker's share of those that wait, as the others are soon free, too.
        """
        if not self._preferred:
            if not self._pads:
                return self.cap
            share = -(-waiting_records(fd) // max(1, self._memory.ready_workers[0]))
            batches = 2 if self.cap > 1 and fd == self._fds[0] else 1
            return max(1, min(share, batches * self.cap))
        waiting = min(waiting_records(fd), self.cap)
        fitting = [size for size in self._preferred if size <= waiting]
        return fitting[-1] if fitting else self.cap

    def _fill_batch(self, fd: int, count: int) -> int:
        """Reads more records after the first `count`, and returns how many there are then.

        Stops at a full batch, at a preferred size, or when the first item has waited for the delay.
        """
        end = self._memory.queued_at[slot_of(self._inbox[self._start])] + self._delay_s
        poll = poll_of((fd, self._control_fd))
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
        """Reads up to `count` records to `offset` in the current half; returns how many there were."""
        first = self._start + offset
        target = self._inbox_bytes[first * RECORD_BYTES : (first + count) * RECORD_BYTES]
        try:
            return os.readv(fd, [target]) // RECORD_BYTES
        except BlockingIOError:
            return 0


def poll_of(fds: Iterable[int]) -> "select.poll":
    """Returns a poll for reading."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return poll


def waiting_records(fd: int) -> int:
    """Returns how many records a work pipe holds."""
    (size,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    return int(size) // RECORD_BYTES
