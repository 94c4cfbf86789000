"""What a web process does when the registry tells it of an engine."""

import asyncio
import threading
from unittest.mock import Mock

import pytest

from serving.engine.registry import EngineHandle
from serving.errors import ConfigurationError
from serving.inference import service as inference_service
from serving.inference.service import InferenceService
from serving.settings import Settings
from tests.reports import reported

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of a web process, without uvloop."""
    return "asyncio"


@pytest.fixture
def service() -> InferenceService:
    """One that has no engine yet."""
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
        assert loop_has_run.wait(20)  # as a tokeniser takes long to read
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
    service.serve(1)
    assert service.models == {}


async def test_an_engine_that_is_discarded_never_serves(
    service: InferenceService, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Mock()
    monkeypatch.setattr(inference_service, "ServedModel", Mock(return_value=model))
    await service.prepare(handle_of(1))
    service.discard(1)
    model.release.assert_called_once()
    service.serve(1)
    assert service.models == {}
