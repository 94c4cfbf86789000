"""Suspects: items on which a worker has died, retried alone and one at a time.

An item that ends its worker would end the next one, too, and everybody would wait for both to start. So
a suspect is queued again, behind all others, only when two workers are ready: one for it, one for the
others. The items of its batch cannot be told from it and are suspects, too. Used by `supervisor.py`.
"""

import time
from collections import deque

from serving.engine.memory import Memory, State, generation_of, record, send, slot_of

MAX_ATTEMPTS = 2
SPARED = -1
"""Attempts of an item whose worker was killed from outside, once: as if it had never been tried."""


class Suspects:
    """Items of dead workers; `memory.attempts` says how often a worker has begun each."""

    def __init__(self, memory: Memory, work_fds: tuple[int, int], done_fds: tuple[int, ...]) -> None:
        """Takes write ends of the pipes."""
        self._memory = memory
        self._work_fds = work_fds
        self._done_fds = done_fds
        self._waiting: deque[int] = deque()
        self._retried = 0
        """Record of the suspect that is being retried, or was the last one."""

    def empty_inbox(self, index: int, killed: bool) -> None:
        """Reports what a dead worker has finished, queues what it has not begun, suspects the rest.

        `killed`: it was ended by SIGKILL, by an operator or for want of memory. That makes suspects only
        the second time.
        """
        memory, inbox = self._memory, self._memory.inbox[index]
        for place, value in enumerate(inbox.tolist()):
            slot = slot_of(value)
            if not value or memory.generation[slot] != generation_of(value):
                continue
            inbox[place] = 0
            if value == self._retried:
                self._retried = 0
            state, attempts = memory.state[slot], memory.attempts[slot]
            if state not in (State.QUEUED, State.RUNNING):
                if state != State.FREE:
                    self._report(slot)
                continue
            memory.state[slot] = State.QUEUED
            if state == State.RUNNING and killed and attempts == 1:
                memory.attempts[slot] = SPARED
            elif state == State.RUNNING or attempts > 0:
                memory.attempts[slot] = max(1, attempts)
                self._waiting.append(value)
                continue
            send(self._work_fds[memory.bulk[slot]], value)

    def release(self, ready: int, workers: int) -> bool:
        """Queues the next suspect if enough of the workers are ready; fails those tried often enough.

        Returns whether one is being retried: ask again soon.
        """
        memory = self._memory
        self._drop_late()
        if self._retried and self._is_open(self._retried):
            return True
        self._retried = 0
        while self._waiting and ready >= min(2, workers):
            value = self._waiting.popleft()
            slot = slot_of(value)
            if memory.attempts[slot] >= MAX_ATTEMPTS:
                memory.state[slot] = State.CRASHED
                self._report(slot)
                continue
            self._retried = value
            send(self._work_fds[memory.bulk[slot]], value)
            return True
        return False

    def _drop_late(self) -> None:
        """Reports suspects that nobody waits for any more."""
        memory, now = self._memory, time.monotonic()
        for value in list(self._waiting):
            slot = slot_of(value)
            if memory.cancelled[slot] or memory.deadline[slot] <= now:
                memory.state[slot] = State.SKIPPED if memory.cancelled[slot] else State.EXPIRED
                self._waiting.remove(value)
                self._report(slot)

    def _is_open(self, value: int) -> bool:
        slot = slot_of(value)
        in_queue = self._memory.state[slot] in (State.QUEUED, State.RUNNING)
        return in_queue and self._memory.generation[slot] == generation_of(value)

    def _report(self, slot: int) -> None:
        memory = self._memory
        send(self._done_fds[memory.owner(slot)], record(slot, memory.generation[slot]))
