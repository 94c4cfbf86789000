"""What becomes of the requests that a dead worker had taken; called by `supervisor.py`."""

from serving.engine.memory import Memory, State, generation_of, record, send, slot_of

MAX_ATTEMPTS = 2


def rescue(memory: Memory, index: int, work_fds: tuple[int, int], done_fds: tuple[int, ...]) -> None:
    """The worker's inbox: finished items are reported, the others are queued once more.

    `work_fds` and `done_fds` are the ends to write. Who was computed by two workers that died is
    given up.
    """
    inbox = memory.inbox[index]
    for place, value in enumerate(inbox.tolist()):
        slot = slot_of(value)
        if not value or memory.generation[slot] != generation_of(value):
            continue
        inbox[place] = 0
        state = memory.state[slot]
        if state == State.RUNNING and memory.attempts[slot] >= MAX_ATTEMPTS:
            memory.state[slot] = state = State.CRASHED
        if state in (State.QUEUED, State.RUNNING):
            memory.state[slot] = State.QUEUED
            send(work_fds[memory.bulk[slot]], value)
        elif state != State.FREE:
            send(done_fds[memory.owner(slot)], record(slot, memory.generation[slot]))
