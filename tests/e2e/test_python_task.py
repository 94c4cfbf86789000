"""The engine's promises hold for Python of one's own, whatever it does.

The service's engine runs in this process, its workers in processes of their own.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from smallplates.engine.client import EngineClient
from smallplates.errors import InternalError, WorkerCrashedError, WorkerTimeoutError
from smallplates.settings import Settings
from smallplates.supervision.planner import planner
from smallplates.supervision.registry import EngineHandle
from smallplates.tasks.python.backend import Status
from tests.e2e.services import local_engine
from tests.servers import until

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def engine(
    monkeypatch: pytest.MonkeyPatch, folder: Path, task: str = "Obedient", **more: str
) -> AsyncIterator[tuple[EngineHandle, EngineClient]]:
    """An engine with one worker for a task of `tests.fake.python_task`, with the gate `folder`/gate."""
    described = {"name": "own", "version": "1", "task": f"tests.fake.python_task:{task}"}
    (folder / "model.json").write_text(json.dumps(described))
    settings = {"model_dir": str(folder), "instances": "1", "queue_size": "16", "device": "cpu"} | more
    for name, value in settings.items():
        monkeypatch.setenv(f"SERVING_{name.upper()}", value)
    monkeypatch.setenv("FAKE_GATE", str(folder / "gate"))
    monkeypatch.setenv("FAKE_SIZES", str(folder / "sizes"))
    chosen = Settings()
    async with local_engine(chosen, planner("no:Backend", chosen)) as handle:
        client = EngineClient(handle.fds, lambda *_: None)
        client.open()
        try:
            yield handle, client
        finally:
            client.close()


async def ask(client: EngineClient, data: bytes) -> tuple[int, str]:
    """The status and the text of one answer."""
    item = [np.frombuffer(data, np.uint8)]
    with client.acquire() as slots:
        await slots.submit(0, [item], time.monotonic() + 60, bulk=False)
        (outcome,) = await slots.results()
    status, answer = outcome.outputs
    return int(status), answer.tobytes().decode().rstrip()


def command(number: int, **more: Any) -> bytes:
    return json.dumps({"number": number, **more}).encode()


async def together(client: EngineClient, folder: Path, *requests: bytes) -> list[Any]:
    """The answers or errors of requests that wait together while another one is computed."""
    first = asyncio.ensure_future(ask(client, command(99, held=True)))
    await until((folder / "gate.held").exists)
    waiting = [asyncio.ensure_future(ask(client, data)) for data in requests]
    await until(lambda: client.memory.state.tolist().count(1) == len(requests))
    (folder / "gate").touch()
    assert json.loads((await first)[1])["number"] == 99
    return await asyncio.gather(*waiting, return_exceptions=True)


def numbers(answers: list[Any]) -> list[int]:
    assert {status for status, _ in answers} == {Status.ANSWER}
    return [json.loads(text)["number"] for _, text in answers]


async def test_what_waits_is_computed_together_and_everybody_gets_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with engine(monkeypatch, tmp_path, max_batch_size="8") as (handle, client):
        requests = [command(3), command(1, padding="x" * 1000), command(4, length=2000)]
        answers = await together(client, tmp_path, *requests)
        assert numbers(answers) == [3, 1, 4]
        assert json.loads(answers[2][1])["text"] == "1 cpu" + "x" * 2000
        assert (tmp_path / "sizes").read_text().splitlines()[-2:] == ["1", "3"]
        assert client.statistics.by_batch_size(0)[3].executions == 1
        assert handle.report.info.backend.endswith("tests.fake.python_task:Obedient")
        assert handle.report.single_request_threads is None
        schemas = handle.report.schemas
        assert schemas["request"]["required"] == ["number"]
        assert schemas["answer"]["properties"].keys() == {"number", "text"}


async def test_a_declared_batch_may_be_larger_than_any_that_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with engine(monkeypatch, tmp_path, "Large", queue_size="128") as (handle, client):
        assert handle.report.batch_cap == 100
        answers = await together(client, tmp_path, *(command(i) for i in range(90)))
        assert numbers(answers) == [*range(90)]
        assert (tmp_path / "sizes").read_text().splitlines() == ["1", "90"]
        assert client.statistics.by_batch_size(0)[90].executions == 1


async def test_a_bad_request_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with engine(monkeypatch, tmp_path, max_batch_size="8") as (_, client):
        bad = [command(1, does="refuse"), command(2, does="refuse late"), b'{"number": "x"}', b"{", b" "]
        *healthy, early, late, of_type, no_json, empty = await together(
            client, tmp_path, command(5), command(6), *bad
        )
        assert numbers(healthy) == [5, 6]
        assert early == (Status.REFUSED, "1 is refused")
        assert late == (Status.REFUSED, "2 is refused late")
        assert of_type[0] == Status.NOT_OF_TYPE
        assert of_type[1].startswith("number: Input should be a valid integer")
        assert no_json[0] == empty[0] == Status.NOT_JSON
        assert (tmp_path / "sizes").read_text().splitlines()[-2:] == ["1", "3"]


@pytest.mark.parametrize(
    ("does", "error"),
    [
        ("fail", InternalError),
        ("fail early", InternalError),
        ("crash", WorkerCrashedError),
        ("hang", WorkerTimeoutError),
        ("refuse alone", None),
    ],
)
async def test_whatever_the_class_does_one_request_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    does: str,
    error: type[Exception] | None,
) -> None:
    timeout = {"worker_timeout_ms": "500" if does == "hang" else "60000"}
    async with engine(monkeypatch, tmp_path, max_batch_size="8", **timeout) as (_, client):
        requests = [command(1), command(2, does=does), command(3)]
        before, failed, after = await together(client, tmp_path, *requests)
        assert numbers([before, after]) == [1, 3]
        if error:
            assert type(failed) is error
            assert "secret" not in str(failed)
            assert ("0.5 s (SERVING_WORKER_TIMEOUT_MS)" in str(failed)) == (does == "hang")
        else:
            assert failed == (Status.REFUSED, "2 is refused, alone")
        assert numbers([await ask(client, command(4))]) == [4]
    assert ("secret details" in capfd.readouterr().err) == does.startswith("fail")


@pytest.mark.parametrize("does", ["fork", "run"])
async def test_a_process_that_a_dead_worker_has_started_ends_and_does_not_hide_its_death(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str
) -> None:
    async with engine(monkeypatch, tmp_path, worker_timeout_ms="60000") as (_, client):
        assert numbers([await ask(client, command(1, does=does))]) == [1]
        child = psutil.Process(int((tmp_path / "gate.child").read_text()))
        try:
            os.kill(child.ppid(), signal.SIGKILL)
            async with asyncio.timeout(60):
                assert numbers([await ask(client, command(2))]) == [2]
            await until(lambda: has_ended(child))
        finally:
            with suppress(psutil.NoSuchProcess):
                child.kill()


def has_ended(process: psutil.Process) -> bool:
    """Also of a process whose end nobody has asked for."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
