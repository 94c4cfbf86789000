"""What a web process does when the registry tells it of an engine, and which models may be loaded."""

import asyncio
import threading
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from smallplates.errors import ConfigurationError, InvalidRequestError
from smallplates.models.folder import Model, configured_models
from smallplates.settings import Settings
from smallplates.supervision.registry import EngineHandle, EnginePlan, Registry
from smallplates.web.inference import service as inference_service
from smallplates.web.inference.service import InferenceService
from tests.fake.model import write_model
from tests.graphs import digest
from tests.reports import reported

pytestmark = pytest.mark.anyio


@pytest.fixture
def service() -> InferenceService:
    registry = Mock(shares_ports=False)
    return InferenceService(Settings(), registry, {"fake": Mock(), "other": Mock()})


def handle_of(key: int) -> EngineHandle:
    """An engine of which nothing is used."""
    return EngineHandle(key, Mock(), Mock(), reported(), Mock())


async def test_the_event_loop_runs_while_an_engine_is_prepared(
    service: InferenceService, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_has_run = threading.Event()

    def build(*_: object) -> Mock:
        assert loop_has_run.wait(60)  # as a tokeniser takes long to read
        return Mock()

    monkeypatch.setattr(inference_service, "ServedModel", build)
    preparing = asyncio.ensure_future(service.prepare(handle_of(1)))
    await asyncio.sleep(0)
    loop_has_run.set()
    await preparing


@pytest.mark.parametrize("error", [ConfigurationError("it is broken"), RuntimeError("it is broken")])
async def test_an_engine_that_cannot_be_prepared_is_released(
    service: InferenceService, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(inference_service, "ServedModel", Mock(side_effect=error))
    handle = handle_of(1)
    with pytest.raises(ConfigurationError, match="it is broken"):
        await service.prepare(handle)
    handle.release.assert_called_once()  # type: ignore[attr-defined]  # a mock
    await service.serve(1)
    assert service.models == {}


async def test_an_engine_that_is_discarded_never_serves(
    service: InferenceService, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Mock()
    monkeypatch.setattr(inference_service, "ServedModel", Mock(return_value=model))
    await service.prepare(handle_of(1))
    await service.discard(1)
    model.release.assert_called_once()
    await service.serve(1)
    assert service.models == {}


async def test_a_drain_waits_for_the_requests_of_a_model_that_was_replaced(
    service: InferenceService, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()
    old, new = Mock(), Mock(report=reported(), workers=1)
    for model in (old, new):
        model.description.name, model.client.drain = "fake", AsyncMock()
    old.close = old.client.drain = AsyncMock(side_effect=answered.wait)
    service.models = {"fake": old}
    monkeypatch.setattr(inference_service, "ServedModel", Mock(return_value=new))
    await service.prepare(handle_of(1))
    await service.serve(1)
    draining = asyncio.ensure_future(service.drain())
    for _ in range(10):
        await asyncio.sleep(0)
    assert service.models == {"fake": new}
    assert not draining.done()
    answered.set()
    await draining


async def test_a_model_that_has_been_closed_is_not_released_again(service: InferenceService) -> None:
    loop, old = asyncio.get_running_loop(), Mock()
    is_forgotten: asyncio.Future[bool] = loop.create_future()

    async def close() -> None:
        loop.call_soon(lambda: is_forgotten.set_result(old not in service._leaving))

    old.close, service.models = close, {"fake": old}
    await service.withdraw("fake", "unloaded")
    assert await is_forgotten  # so `run`, which may end now, does not close its descriptors again


class Engines(Registry):
    """Notes what is to be loaded, and starts nothing."""

    def __init__(self, settings: Settings, models: dict[str, Model]) -> None:
        super().__init__(settings, lambda *_: EnginePlan("no:Backend", ()), models)
        self.loaded: list[tuple[str, str]] = []

    async def load(self, model: Model) -> None:
        self.loaded.append((model.description.name, model.description.version))


async def test_what_sha256_does_not_list_is_not_loaded_later(tmp_path: Path) -> None:
    first, store = tmp_path / "first", tmp_path / "store"
    write_model(first, "1")
    for later in ("2", "3"):
        write_model(first / later, later)
    for name in ("known", "unknown"):
        write_model(store / name, "1", title=name, aliases={})

    listed = {"fake": first, "known": store / "known", "other": store / "unknown"}
    digests = [f"{name}={digest(folder / 'model.json')}" for name, folder in listed.items()]
    digests.append(f"fake={digest(first / '2/model.json')}")
    settings = Settings(model_dir=first, model_store=store, model_sha256=digests)

    engines = Engines(settings, configured_models(settings))
    service = InferenceService(settings, engines, configured_models(settings))
    await service.load("fake", "2")
    await service.load("known")
    for name, version in (("fake", "3"), ("unknown", None)):
        with pytest.raises(InvalidRequestError, match=f"SERVING_MODEL_SHA256 does not list {name}="):
            await service.load(name, version)
    assert engines.loaded == [("fake", "2"), ("known", "1")]
