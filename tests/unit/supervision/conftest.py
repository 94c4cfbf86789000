"""The small layout of the engine's tests."""

from tests.unit.engine.conftest import memory as memory
