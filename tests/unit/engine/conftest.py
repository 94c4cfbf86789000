"""A small layout of the shared memory, and a mapping of it."""

from collections.abc import Iterator

import pytest

from smallplates.engine.memory import Memory, SlotLayout
from smallplates.tasks.image_classification import image_signatures

LAYOUT = SlotLayout(
    slots=12, web_processes=3, workers=2, max_batch=8, signatures=image_signatures((5, 7), 11)
)
IMAGES = LAYOUT.signatures[0]


@pytest.fixture
def memory() -> Iterator[Memory]:
    """A mapping of its own."""
    mapping = Memory.create(LAYOUT)
    yield mapping
    mapping.close()
