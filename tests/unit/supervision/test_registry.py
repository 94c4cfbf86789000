"""The owner of what is in service: which engine serves, what web processes hear, and in which order."""

import asyncio
from threading import Event
from typing import Any
from unittest.mock import Mock

import pytest

from smallplates.engine.memory import EngineFds
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.supervision import registry as engine_registry
from smallplates.supervision.registry import EngineHandle, EnginePlan, Registry
from tests.reports import reported
from tests.unit.engine.conftest import LAYOUT

pytestmark = pytest.mark.anyio


class Web:
    """A web process that notes what it is told; it refuses the versions in `broken`."""

    def __init__(self, index: int = 0, broken: tuple[str, ...] = ()) -> None:
        self.index = index
        self.broken = broken
        self.error: Exception = ConfigurationError("its tokenizer.json is broken")
        self.told: list[tuple[str, str]] = []
        self.prepared: dict[int, EngineHandle] = {}
        self.served: dict[str, EngineHandle] = {}

    def note(self, what: str, key: int) -> None:
        description = self.prepared[key].model.description
        self.told.append((what, f"{description.name} {description.version}"))

    async def prepare(self, handle: EngineHandle) -> None:
        """Takes the engine, unless it is a broken one."""
        self.prepared[handle.key] = handle
        self.note("prepare", handle.key)
        if handle.model.description.version in self.broken:
            del self.prepared[handle.key]
            handle.release()
            raise self.error

    async def serve(self, key: int) -> None:
        """Gives back the one before at once."""
        if engine := self.prepared.get(key):
            self.note("serve", key)
            name = engine.model.description.name
            if before := self.served.get(name):
                before.release()
            self.served[name] = engine

    async def discard(self, key: int) -> None:
        """Gives back an engine that it has taken."""
        if engine := self.prepared.get(key):
            self.note("discard", key)
            engine.release()

    async def withdraw(self, name: str, reason: str) -> None:
        """Gives back the engine of a model."""
        self.told.append((reason, name))
        if before := self.served.pop(name, None):
            before.release()


def version_of(name: str, version: str) -> Model:
    """A version of a model; its files do not matter."""
    model = Model.read(Settings().model_dir, version, name)
    assert model.description.name == name
    return model


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Mock]:
    """The supervisors that the registry makes, whose engines start at once."""
    made: list[Mock] = []

    def make(_: str, model: Model, *__: object) -> Mock:
        supervisor = Mock(model=model, report=reported(), layout=LAYOUT)
        supervisor.engine_fds.return_value = EngineFds(0, LAYOUT, 0, 0, (0, 0), 0, 0)
        made.append(supervisor)
        return supervisor

    monkeypatch.setattr(engine_registry, "Supervisor", make)
    return made


def registry_of(*names: str) -> Registry:
    """One for version 1 of these models."""
    models = {name: version_of(name, "1") for name in names}
    return Registry(Settings(), lambda *_: EnginePlan("no:Backend", ()), models, 2)


async def test_a_version_serves_when_every_web_process_has_prepared_it(started: list[Mock]) -> None:
    registry, first, second = registry_of("a"), Web(0), Web(1)
    await registry.add(first)
    await registry.add(second)
    await registry.start()
    await registry.load(version_of("a", "2"))
    assert (
        first.told
        == second.told
        == [("prepare", "a 1"), ("serve", "a 1"), ("prepare", "a 2"), ("serve", "a 2")]
    )
    old, new = started
    assert old.close.called
    assert not new.close.called
    assert [engine.supervisor for engine in registry.engines] == [new]


async def test_what_serves_is_loaded_again_if_its_files_have_changed(started: list[Mock]) -> None:
    registry, web = registry_of("a"), Web()
    await registry.add(web)
    await registry.start()
    await registry.load(version_of("a", "1"))
    assert len(started) == 1
    changed = version_of("a", "1")
    changed.files = frozenset({*changed.files, ("extra", 1, 1)})
    for _ in range(2):
        await registry.load(changed)
    assert len(started) == 2
    assert web.told == [("prepare", "a 1"), ("serve", "a 1")] * 2
    assert started[0].close.called


async def test_counters_continue_from_the_last_engine_also_of_an_unloaded_model(
    started: list[Mock],
) -> None:
    registry = registry_of("a")
    await registry.start()
    await registry.load(version_of("a", "2"))
    await registry.unload("a")
    await registry.load(version_of("a", "3"))
    first, second, third = started
    assert first.memory.continue_counters.call_args.args == ((0, 0),)
    assert second.memory.continue_counters.call_args.args == (first.memory.counters,)
    assert third.memory.continue_counters.call_args.args == (second.memory.counters,)


@pytest.mark.parametrize("error", [ConfigurationError("its tokenizer.json is broken"), KeyError("x")])
async def test_a_version_that_one_web_process_cannot_serve_changes_nothing(
    started: list[Mock], error: Exception
) -> None:
    registry, first, second = registry_of("a"), Web(0), Web(1, broken=("2",))
    second.error = error
    await registry.add(first)
    await registry.add(second)
    await registry.start()
    with pytest.raises(type(error)):
        await registry.load(version_of("a", "2"))
    assert first.told[-2:] == [("prepare", "a 2"), ("discard", "a 2")]
    for web in (first, second):
        assert web.served["a"].model.description.version == "1"
    old, new = started
    assert new.close.called
    assert not old.close.called
    assert [engine.is_serving for engine in registry.engines] == [True]


async def test_the_default_that_a_web_process_cannot_serve_ends_the_start(started: list[Mock]) -> None:
    registry = registry_of("a")
    await registry.add(Web(broken=("1",)))
    with pytest.raises(ConfigurationError, match="tokenizer"):
        await registry.start()
    assert started[0].close.called


async def test_every_model_that_cannot_be_planned_is_named(started: list[Mock]) -> None:
    def plan(model: Model, _: Event) -> EnginePlan:
        if model.description.name != "b":
            raise ConfigurationError(f"{model.description.name} is broken")
        return EnginePlan("no:Backend", ())

    models = {name: version_of(name, "1") for name in "abc"}
    with pytest.raises(ConfigurationError, match="a is broken; c is broken"):
        await Registry(Settings(), plan, models).start()
    assert not started


async def test_the_end_of_the_service_interrupts_the_plan_and_leaves_out_the_others(
    started: list[Mock],
) -> None:
    planned: list[str] = []

    def plan(model: Model, ending: Event) -> EnginePlan:
        planned.append(model.description.name)
        loop.call_soon_threadsafe(registry.stop)
        ending.wait()  # as the process that reads a file is ended
        return EnginePlan("no:Backend", ())

    loop = asyncio.get_running_loop()
    registry = Registry(Settings(), plan, {name: version_of(name, "1") for name in "abc"})
    with pytest.raises(ConfigurationError, match="shutting down"):
        await registry.start()
    assert (planned, started) == (["a"], [])


async def test_an_engine_ends_when_its_last_user_has_released_it_or_died(started: list[Mock]) -> None:
    registry, first, second = registry_of("a"), Web(0), Web(1)
    await registry.add(first)
    await registry.add(second)
    await registry.start()
    (engine,) = registry.engines
    first.served.clear()  # they still answer requests
    second.served.clear()
    switching = asyncio.ensure_future(registry.load(version_of("a", "2")))
    for _ in range(20):  # turns of the event loop, until it waits for the engine's users
        await asyncio.to_thread(int)
    assert second.told[-1] == ("serve", "a 2")
    engine.release(0)
    await asyncio.sleep(0)
    assert not engine.is_serving
    assert not started[0].close.called
    registry.remove(second)
    started[0].cancel_requests_of.assert_called_once_with(1)
    await switching
    assert started[0].close.called
    assert engine not in registry.engines


async def test_a_web_process_that_comes_later_hears_what_is_in_service(started: list[Mock]) -> None:
    registry = registry_of("a", "b")
    await registry.start()
    await registry.start_others()
    await registry.unload("b")
    late = Web(1)
    await registry.add(late)
    assert late.told == [("unloaded", "b"), ("prepare", "a 1"), ("serve", "a 1")]
    assert len(started) == 2


async def test_one_that_comes_later_and_cannot_serve_a_model_serves_the_others(
    started: list[Mock],
) -> None:
    registry = registry_of("a", "b")
    await registry.start()
    await registry.start_others()
    await registry.load(version_of("a", "2"))
    late = Web(1, broken=("2",))
    with pytest.raises(ConfigurationError, match="tokenizer"):
        await registry.add(late)
    assert list(late.served) == ["b"]
    assert ("its tokenizer.json is broken", "a") in late.told
    assert len(started) == 3


async def test_a_model_with_a_defect_does_not_keep_the_others_out_of_service(
    started: list[Mock], monkeypatch: pytest.MonkeyPatch
) -> None:
    make: Any = vars(engine_registry)["Supervisor"]

    def fail(backend: str, model: Model, *further: Any) -> Any:
        if model.description.name == "b":
            raise KeyError("a defect")
        return make(backend, model, *further)

    monkeypatch.setattr(engine_registry, "Supervisor", fail)
    registry, web = registry_of("a", "b", "c"), Web()
    await registry.join(web)
    await asyncio.gather(*registry._tasks)
    assert [engine.name for engine in registry.engines] == ["a", "c"]
    assert [*registry.reasons] == ["b"]
    assert len(started) == 2


async def test_a_version_that_is_loaded_while_models_start_stays(started: list[Mock]) -> None:
    registry, web = registry_of("a", "b", "c"), Web()
    await registry.add(web)
    await registry.start()
    await registry.load(version_of("b", "2"))
    await registry.unload("a")
    await registry.start_others()
    assert {name: engine.model.description.version for name, engine in web.served.items()} == {
        "b": "2",
        "c": "1",
    }
    assert len(registry.engines) == 2
    assert len(started) == 3
    await registry.close()
    assert all(supervisor.close.called for supervisor in started)


async def test_all_engines_begin_to_end_before_the_first_is_waited_for(started: list[Mock]) -> None:
    registry = registry_of("a", "b")
    await registry.add(Web())
    await registry.start()
    await registry.start_others()
    told: list[str] = []
    for supervisor in started:
        supervisor.stop.side_effect = lambda: told.append("stop")
        supervisor.close.side_effect = lambda: told.append("close")
    await registry.close()
    assert told == ["stop", "stop", "close", "close"]
