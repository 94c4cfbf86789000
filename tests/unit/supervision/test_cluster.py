"""The parent of several web processes, where the system refuses it something or they do not answer."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from smallplates.engine.memory import UNKNOWN, EngineFds
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.supervision import balance, messages
from smallplates.supervision import cluster as cluster
from smallplates.supervision import registry as engine_registry
from smallplates.supervision import web_process as web_process_module
from smallplates.supervision.planner import task_of
from smallplates.supervision.registry import Engine, EnginePlan
from smallplates.supervision.supervisor import Supervisor
from smallplates.supervision.web_process import MAX_OF_A_START, MAX_UNANSWERED, WebProcess
from smallplates.supervision.worker_process import STARTS_IF_KILLED
from smallplates.system import cpus
from tests.reports import reported
from tests.unit.engine.conftest import LAYOUT

pytestmark = pytest.mark.anyio
PLAN = EnginePlan("no:Backend", ())
End = tuple[WebProcess, socket.socket]


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> cluster.Cluster:
    """One whose processes have not been started."""
    monkeypatch.setattr(cluster, "RESTART_S", 0.01)
    made = cluster.Cluster("tests.fake", Settings(web_processes=2))
    made._listener, made._metrics_folder = Mock(), Mock()
    made._registry._planner = lambda *_: PLAN
    return made


@pytest.fixture
def web_processes(parent: cluster.Cluster) -> Iterator[list[End]]:
    """Two that are ready, each with its own end of a socket; they do only what a test does for them."""
    with contextlib.ExitStack() as held:
        made = []
        for index in range(2):
            ours, theirs = (held.enter_context(end) for end in messages.pair())
            ours.setblocking(False)
            theirs.setblocking(False)
            popen = held.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1))
            held.callback(popen.kill)
            parent._web_processes[index] = WebProcess(index, popen, ours, ready=True)
            made.append((parent._web_processes[index], theirs))
        yield made


def received(end: socket.socket) -> list[str]:
    """The types of the messages that wait at a web process's end."""
    types = []
    with contextlib.suppress(BlockingIOError):
        while True:
            types.append(json.loads(end.recv(messages.MAX_MESSAGE))["type"])
    return types


def tell(parent: cluster.Cluster, web_process: WebProcess, connections: int) -> None:
    """As a web process that says how many connections it has."""
    parent._on_message(web_process, {"type": "connections", "count": connections})


async def load(parent: cluster.Cluster, web_process: WebProcess, version: str) -> None:
    """Asks for a version of the default model, and returns when the parent has answered."""
    message = {**messages.identity(version_of_food11("1")), "type": "load", "id": 5, "version": version}
    parent._on_message(web_process, message)
    await asyncio.gather(*parent._registry._tasks)


def refused(*_: object, **__: object) -> None:
    raise OSError(errno.EAGAIN, "not now")


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


async def test_who_asks_for_a_version_is_answered_where_its_engine_cannot_be_started(
    parent: cluster.Cluster, web_processes: list[End], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "_allocate", refused)
    web_process, its_end = web_processes[0]
    await load(parent, web_process, "1")
    answer = json.loads(its_end.recv(messages.MAX_MESSAGE))
    assert answer["type"] == "done"
    assert "not now" in answer["error"]


async def test_a_web_process_that_cannot_be_started_is_tried_again(
    parent: cluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []

    def start(*arguments: object) -> None:
        tries.append(arguments)
        parent._shutdown = len(tries) == 3
        refused()

    monkeypatch.setattr(WebProcess, "start", start)
    parent._is_open = True
    await parent._keep(0)
    assert len(tries) == 3


async def test_a_web_process_that_cannot_be_started_at_first_ends_the_start(
    parent: cluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", refused)
    parent._listener.fileno.return_value = 0  # type: ignore[attr-defined]  # a mock
    with pytest.raises(ConfigurationError, match="not now"):
        await parent._keep(0)


async def test_a_start_that_fails_does_not_wait_for_a_web_process_that_has_died(
    parent: cluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = messages.pair()
    theirs.close()
    ours.setblocking(False)
    dead = WebProcess(0, Mock(pid=0, **{"wait.return_value": 0}), ours)
    monkeypatch.setattr(WebProcess, "start", lambda *_: dead)
    engine = Engine(0, Mock())
    engine.handle(0)
    parent._registry.engines.append(engine)

    async def fail() -> None:
        await engine.free.wait()
        raise ConfigurationError("another web process cannot prepare it")

    parent._start = parent._spawn(fail())
    async with asyncio.timeout(60):
        with pytest.raises(ConfigurationError, match="another"):
            await parent._keep(0)


async def test_connections_are_accepted_when_all_have_been_ready_once(
    parent: cluster.Cluster, web_processes: list[End]
) -> None:
    (first, its_end), (second, other_end) = web_processes
    first.ready = second.ready = False
    parent._listener.getsockname.return_value = ("127.0.0.1", 1)  # type: ignore[attr-defined]  # a mock
    parent._on_message(first, {"type": "ready"})
    assert received(its_end) == []
    parent._on_message(second, {"type": "ready"})
    assert (received(its_end), received(other_end)) == (["accept"], ["accept"])
    first.ready = False
    parent._on_message(second, {"type": "ready"})  # a successor need not wait for the other
    assert (received(its_end), received(other_end)) == ([], ["accept"])


async def test_a_long_pause_of_all_processes_counts_once(
    parent: cluster.Cluster, web_processes: list[End], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now)
    tell(parent, web_processes[0][0], 1)
    for _ in range(3 * MAX_UNANSWERED):
        now += 3600
        for _ in range(3):  # turns of the loop
            await asyncio.sleep(0)
        assert [received(end) for _, end in web_processes] == [["ping"], ["ping"]]
        for web_process, _ in web_processes:
            tell(parent, web_process, 1)
    assert all(web_process.ready for web_process, _ in web_processes)


async def test_the_connections_of_a_dead_web_process_are_gone(
    parent: cluster.Cluster, web_processes: list[End]
) -> None:
    tell(parent, web_processes[0][0], 2)
    shared = parent._registry.counts
    for counts in (shared.connections, shared.in_flight):
        counts[0], counts[1] = 2, 1
    parent._on_death(web_processes[0][0], -9)
    assert parent._next_ping is None
    assert list(shared.in_flight) == [0, 1]
    assert list(shared.connections) == [UNKNOWN, 1]  # the other one need not leave connections to it


async def test_a_web_process_that_crashes_at_the_start_ends_it(
    parent: cluster.Cluster, web_processes: list[End]
) -> None:
    parent._on_death(web_processes[0][0], -signal.SIGKILL)  # as if memory ran out, perhaps for a while
    with pytest.raises(ConfigurationError, match="a web process was ended by signal 7"):
        parent._on_death(web_processes[1][0], -signal.SIGBUS)


async def test_a_web_process_that_is_killed_at_every_start_ends_it(
    parent: cluster.Cluster, web_processes: list[End]
) -> None:
    web_process = web_processes[0][0]
    for _ in range(STARTS_IF_KILLED - 1):
        parent._on_death(web_process, -signal.SIGKILL)
        parent._web_processes[0] = web_process
    with pytest.raises(ConfigurationError, match="a web process was killed by SIGKILL"):
        parent._on_death(web_process, -signal.SIGKILL)


async def test_a_web_process_that_ends_at_the_start_ends_it(
    parent: cluster.Cluster, web_processes: list[End]
) -> None:
    """As OpenBLAS interrupts one whose threads the system refuses."""
    with pytest.raises(ConfigurationError, match="a web process ended with exit code 0"):
        parent._on_death(web_processes[0][0], 0)


def test_metrics_are_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = {"/dev/shm": 4096, str(tmp_path): cluster.METRICS_BYTES}  # noqa: S108
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "statvfs", lambda path: Mock(f_bavail=rooms[str(path)], f_frsize=1))
    assert cluster.metrics_parent() == tmp_path
    rooms[str(tmp_path)] -= 1
    assert cluster.metrics_parent() is None
    rooms["/dev/shm"] = cluster.METRICS_BYTES  # noqa: S108
    monkeypatch.setattr("tempfile.gettempdir", Mock(side_effect=FileNotFoundError))
    assert cluster.metrics_parent() == Path("/dev/shm")  # noqa: S108
    monkeypatch.setattr(os, "statvfs", Mock(side_effect=FileNotFoundError))
    assert cluster.metrics_parent() is None


@pytest.mark.parametrize("port", ["tcp_port", "grpc_port"])
async def test_connections_of_other_ports_are_not_known(port: str) -> None:
    made = cluster.Cluster("tests.fake", Settings.model_validate({"web_processes": 2, port: 9}))
    made._watch()
    assert made._next_ping is not None


@pytest.mark.parametrize("is_ending", [True, False])
async def test_a_start_may_be_slow_but_not_for_ever(
    parent: cluster.Cluster, web_processes: list[End], is_ending: bool
) -> None:
    (web_process, _), (slow, _) = web_processes
    tell(parent, web_process, 1)
    slow.ready = False
    for _ in range(MAX_OF_A_START):
        parent._ping()
        tell(parent, web_process, 1)
    assert slow.popen.poll() is None
    tell(parent, slow, 0)  # its event loop runs at last
    for _ in range(MAX_UNANSWERED):
        parent._ping()
        tell(parent, web_process, 1)
    assert slow.popen.poll() is None
    parent._shutdown = is_ending
    for _ in range(1 if is_ending else MAX_OF_A_START - MAX_UNANSWERED + 1):
        parent._ping()
        tell(parent, web_process, 1)
    assert slow.popen.wait(60) == -9
    assert web_process.popen.poll() is None


async def test_a_web_process_that_stays_after_its_end_is_killed(
    web_processes: list[End], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_process_module, "END_S", 0.01)
    assert await web_processes[0][0].exit_code() == -9


async def test_an_engine_for_whose_message_there_is_no_room_is_given_back(
    web_processes: list[End], engines: list[Mock], monkeypatch: pytest.MonkeyPatch
) -> None:
    (web_process, _), engine = web_processes[0], Engine(0, engines[0])
    monkeypatch.setattr(messages, "send", no_room)
    with pytest.raises(ConfigurationError, match="Too many open files"):
        await web_process.prepare(engine.handle(0))
    assert engine.free.is_set()
    assert web_process.popen.poll() is None


async def test_a_web_process_that_cannot_be_told_what_serves_is_ended(
    web_processes: list[End], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "send", no_room)
    await web_processes[0][0].serve(0)
    assert web_processes[0][0].popen.returncode == -9


def version_of_food11(version: str) -> Model:
    return Model.read(Settings().model_dir, version)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Mock]:
    """The supervisors of versions 1 and 2, as the registry starts them."""
    made = [Mock(model=version_of_food11(version), report=reported()) for version in ("1", "2")]
    for engine in made:
        engine.engine_fds.return_value = EngineFds(0, LAYOUT, 0, 0, (0, 0), 0, 0)
    monkeypatch.setattr(engine_registry, "Supervisor", Mock(side_effect=made))
    monkeypatch.setattr(cluster, "planner", lambda *_: lambda *_: PLAN)
    return made


async def test_a_web_process_that_cannot_be_given_its_engine_is_killed(
    web_processes: list[End], engines: list[Mock]
) -> None:
    silent, _ = web_processes[0]
    with contextlib.suppress(BlockingIOError):
        while True:
            messages.send(silent.sock, "ping")
    serving = asyncio.ensure_future(silent.prepare(Engine(0, engines[0]).handle(0)))
    await asyncio.sleep(0)
    assert silent.popen.wait(60) == -9
    silent.calls.end(None)
    await serving


@pytest.mark.usefixtures("engines")
async def test_a_change_ends_when_the_web_process_has_made_it_or_has_died(
    parent: cluster.Cluster, web_processes: list[End]
) -> None:
    (first, its_end), (second, other_end) = web_processes
    for web_process, _ in web_processes:
        await parent._registry.add(web_process)
    starting = asyncio.ensure_future(parent._registry.start())
    loop = asyncio.get_running_loop()
    for end in (its_end, other_end):
        message = json.loads(await loop.sock_recv(end, messages.MAX_MESSAGE))
        assert (message["type"], message["version"], message["id"]) == ("prepare", "1", 0)
    parent._on_message(first, {"type": "done", "id": 0, "error": None})
    second.calls.end(None)
    message = json.loads(await loop.sock_recv(its_end, messages.MAX_MESSAGE))
    assert (message["type"], message["key"]) == ("serve", 0)
    assert not starting.done()
    parent._on_message(first, {"type": "done", "id": 1, "error": None})
    second.calls.end(None)
    await starting


async def test_who_asks_for_a_change_hears_when_it_is_made(
    parent: cluster.Cluster, web_processes: list[End], engines: list[Mock]
) -> None:
    asker, its_end = web_processes[0]
    await parent._registry.start()  # all web processes are being replaced
    await load(parent, asker, "2")
    assert engines[0].close.called
    assert received(its_end) == ["done"]
    parent._on_message(asker, {"type": "unload", "id": 6, "model": "food11"})
    await asyncio.sleep(0)
    pings = [parent._next_ping]
    await asyncio.gather(*parent._registry._tasks)
    assert received(its_end) == ["done"]
    pings.append(parent._next_ping)
    assert [ping is not None for ping in pings] == [True, False]  # one that hangs must not hold it up
    assert parent._registry.reasons == {"food11": "unloaded"}


@pytest.mark.parametrize(("device", "count", "why"), [("cpu", 4, "8 cores, 1.5"), ("cuda:0", 7, "GPU")])
async def test_their_number_is_settled_by_the_first_engine_and_stays(
    engines: list[Mock], monkeypatch: pytest.MonkeyPatch, device: str, count: int, why: str
) -> None:
    monkeypatch.setattr(cpus, "usable", lambda: 8)
    monkeypatch.setattr(balance, "request_ms", lambda _: 1.4)
    monkeypatch.setattr(cluster, "task_of", Mock())
    parent = cluster.Cluster("tests.fake", Settings(device="cpu"))
    for engine, batch_ms in zip(engines, ({4: 6.0, 1: 3.0}, {4: 0.01}), strict=True):
        engine.layout = replace(LAYOUT, slots=14, web_processes=7, workers=8)
        engine.report = reported(device, batch_cap=6, batch_ms=batch_ms, workers=8)
    await parent._registry.start()
    await parent._registry.load(version_of_food11("2"))
    calls = engine_registry.Supervisor.call_args_list  # type: ignore[attr-defined]
    assert [call.args[-1] for call in calls] == [8, count]
    for engine in engines:
        assert engine.report.web_processes == count
        assert why in engine.report.web_processes_reason


def test_a_request_takes_longer_than_decoding(model: Model) -> None:
    assert balance.request_ms(task_of(model, Settings(), {}, [])) > balance.REQUEST_MS
