"""Suspects: items that a worker was computing when it died; they are retried alone, one at a time.

An item that crashes its worker would crash the next one, too, and all requests would wait for both to
restart. So a suspect is queued again, behind all other items, only when two workers are ready: one for
the suspect, one for the other items. All items of the dead worker's batch are suspects, since nothing
tells which of them caused the crash. Used by `supervisor.py`.
"""

import time
from collections import deque

from smallplates.engine.memory import Memory, State, generation_of, record, send, slot_of

MAX_ATTEMPTS = 2
SPARED = -1
"""Attempts of an item whose worker was killed from outside once: the first attempt does not count."""


class Suspects:
    """Items of dead workers; `memory.attempts` counts how often workers have started each of them."""

    def __init__(self, memory: Memory, work_fds: tuple[int, int], done_fds: tuple[int, ...]) -> None:
        """`work_fds` and `done_fds` are the write ends of the pipes."""
        self._memory = memory
        self._work_fds = work_fds
        self._done_fds = done_fds
        self._queue: deque[tuple[int, bool]] = deque()
        """Their records, and whether the last worker of each was hung."""

        self._retry = 0
        """Record of the suspect that is computed again, or of the last one; 0: none."""

    def empty_inbox(self, index: int, is_killed: bool, is_hung: bool = False) -> None:
        """Empties a dead worker's inbox: reports finished items and requeues those not yet started.

        The other items become suspects. `is_killed` means that SIGKILL ended the worker, sent by an
        operator or by the kernel for lack of memory; items then become suspects only the second time.
        `is_hung` means that the supervisor ended it because of the time limit.
        """
        memory, inbox = self._memory, self._memory.inbox[index]
        for place, value in enumerate(inbox.tolist()):
            slot = slot_of(value)
            if not value or memory.generation[slot] != generation_of(value):
                continue
            inbox[place] = 0
            if value == self._retry:
                self._retry = 0
            attempts = memory.attempts[slot]  # a worker that takes the slot changes its state first
            state = memory.state[slot]
            if state == State.RUNNING and memory.worker[slot] != index:
                continue  # the dead worker had just given it back, and another one has taken it
            if state not in (State.QUEUED, State.RUNNING):
                if state != State.FREE:
                    self._report(slot)
                continue
            if state == State.RUNNING:
                memory.state[slot] = State.QUEUED
            if state == State.RUNNING and is_killed and attempts == 1:
                memory.attempts[slot] = SPARED
            elif state == State.RUNNING or attempts > 0:
                memory.attempts[slot] = max(1, attempts)
                self._queue.append((value, is_hung))
                continue
            send(self._work_fds[memory.bulk[slot]], value)

    def release(self, ready: int, workers: int) -> bool:
        """Queues the next suspect if enough workers are ready; fails suspects without attempts left.

        Returns whether a retry is in progress; if so, call again soon.
        """
        memory = self._memory
        self._drop()
        if self._retry:
            slot = slot_of(self._retry)
            is_open = memory.state[slot] in (State.QUEUED, State.RUNNING)
            if is_open and memory.generation[slot] == generation_of(self._retry):
                return True
        self._retry = 0
        while self._queue and ready >= min(2, workers):
            value, is_hung = self._queue.popleft()
            slot = slot_of(value)
            if memory.attempts[slot] >= MAX_ATTEMPTS:
                memory.state[slot] = State.TIMED_OUT if is_hung else State.CRASHED
                self._report(slot)
                continue
            self._retry = value
            send(self._work_fds[memory.bulk[slot]], value)
            return True
        return False

    def _drop(self) -> None:
        """Reports suspects that were cancelled or missed their deadline.

        Forgets those that were queued twice and that another worker has found.
        """
        memory, now = self._memory, time.monotonic()
        for suspect in list(self._queue):
            slot = slot_of(suspect[0])
            is_current = memory.generation[slot] == generation_of(suspect[0])
            waits = is_current and memory.state[slot] == State.QUEUED
            if waits and memory.deadline[slot] > now and not memory.cancelled[slot]:
                continue
            self._queue.remove(suspect)
            if waits:
                memory.state[slot] = State.SKIPPED if memory.cancelled[slot] else State.EXPIRED
                self._report(slot)

    def _report(self, slot: int) -> None:
        memory = self._memory
        send(self._done_fds[memory.owner(slot)], record(slot, memory.generation[slot]))
