"""`smallplates.engine.memory`: records, and arrays that do not overlap."""

import os
from array import array as array_of

import psutil
import pytest

from smallplates.engine.memory import Memory, State, anonymous_file, generation_of, record, slot_of
from tests.unit.engine.conftest import LAYOUT


@pytest.mark.parametrize(("slot", "generation"), [(0, 0), (0, 1), (4095, 0x7FFFFFFF), (7, 12)])
def test_a_record_holds_slot_and_generation_and_is_never_zero(slot: int, generation: int) -> None:
    value = record(slot, generation)
    assert 0 < value < 2**64
    assert (slot_of(value), generation_of(value)) == (slot, generation)


def test_arrays_do_not_overlap(memory: Memory) -> None:
    arrays = {name: array for name, array in vars(memory).items() if isinstance(array, memoryview)}
    arrays = {name: array for name, array in arrays.items() if not name.startswith("_")}
    for place, array in enumerate(arrays.values(), start=1):
        for index in range(len(array)):
            array[index] = place
    rows = [row for rows in memory.statistics for row in rows]
    for row in rows:
        row[:] = array_of("q", [99] * len(row))
    tensors = [tensor.array for slots in memory.signatures for tensor in (*slots.inputs, *slots.outputs)]
    for number, tensor in enumerate(tensors, start=100):
        tensor[:] = number
    memory.sizes[:] = 98
    for place, (name, array) in enumerate(arrays.items(), start=1):
        assert set(array.tolist()) == {place}, name
    assert all(set(row.tolist()) == {99} for row in rows)
    assert all((tensor == number).all() for number, tensor in enumerate(tensors, start=100))
    assert (memory.sizes == 98).all()
    assert [tensor.shape for tensor in tensors[:3]] == [(12, 5, 7, 3), (12, 11), (12, 3, 5, 7)]
    assert [memory.owner(slot) for slot in range(12)] == [0] * 4 + [1] * 4 + [2] * 4


def test_another_mapping_of_the_same_descriptor_sees_the_same(memory: Memory) -> None:
    other = Memory(os.dup(memory.fd), LAYOUT, memory.counts.fd)
    memory.state[3] = State.DONE
    memory.signatures[0].inputs[0].array[3] = 9
    assert other.state[3] == State.DONE
    assert (other.signatures[0].inputs[0].array[3] == 9).all()
    other.close()


def test_a_file_that_is_too_large_leaves_no_descriptor() -> None:
    before = psutil.Process().num_fds()
    with pytest.raises(OverflowError):
        anonymous_file(2**64)
    assert psutil.Process().num_fds() == before
