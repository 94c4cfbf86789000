"""The parent of several web processes, where the system refuses it something or they do not answer."""

import contextlib
import errno
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from serving.cluster import messages
from serving.cluster import parent as cluster
from serving.engine.memory import EngineFds, SlotLayout, Tally
from serving.engine.supervisor import Supervisor
from serving.settings import Settings

LAYOUT = SlotLayout(slots=2, frontends=2, workers=1, max_batch=1, height=8, width=8, classes=9)


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[cluster.Cluster]:
    """One whose processes have not been started."""
    monkeypatch.setattr(cluster, "RESTART_S", 0.01)
    made = cluster.Cluster("tests.fake", Settings(web_processes=2))
    made._tally = Tally.create(2)
    made._folder = None
    yield made
    made._selector.close()


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The parent's."""
    made = Clock()
    monkeypatch.setattr(cluster, "time", made)
    return made


@pytest.fixture
def webs(parent: cluster.Cluster) -> Iterator[list[tuple[cluster.FrontendProcess, socket.socket]]]:
    """Two that are ready, each with its own end of a socket; they do only what a test does for them."""
    with contextlib.ExitStack() as held:
        made = []
        for index in range(2):
            ours, theirs = (held.enter_context(end) for end in messages.pair())
            theirs.setblocking(False)
            popen = held.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1))
            held.callback(popen.kill)
            parent._frontends[index] = cluster.FrontendProcess(index, popen, ours, ready=True)
            made.append((parent._frontends[index], theirs))
        yield made


def questions(end: socket.socket) -> int:
    """How many a web process has been asked; it reads them all."""
    asked = 0
    with contextlib.suppress(BlockingIOError):
        while end.recv(messages.MAX_MESSAGE) == messages.QUESTION:
            asked += 1
    return asked


def answer(parent: cluster.Cluster, web: cluster.FrontendProcess, end: socket.socket) -> None:
    """As a web process that has been asked once."""
    assert questions(end) == 1
    messages.send(end, type="here")
    parent._on_message(web)


def refused(*_: object, **__: object) -> None:
    """What the system says."""
    raise OSError(errno.EAGAIN, "not now")


def test_who_asks_for_a_version_is_answered_where_its_engine_cannot_be_started(
    parent: cluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "_make", refused)
    ours, theirs = messages.pair()
    with ours, theirs, subprocess.Popen(["true"]) as program:
        parent._load(cluster.FrontendProcess(0, program, ours), "1")
        parent._loaders[0].join()
        parent._on_news()
        answer = json.loads(theirs.recv(messages.MAX_MESSAGE))
    assert answer["type"] == "switched"
    assert "not now" in answer["error"]


def test_a_web_process_that_cannot_be_started_is_tried_again(
    parent: cluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []

    def popen(*arguments: object, **_: object) -> None:
        tries.append(arguments)
        parent._stopping = len(tries) == 3
        refused()

    monkeypatch.setattr(subprocess, "Popen", popen)
    assert parent._loop() == 0
    assert len(tries) == 3


def test_a_web_process_that_leaves_question_after_question_unanswered_is_killed(
    parent: cluster.Cluster, webs: list[tuple[cluster.FrontendProcess, socket.socket]], clock: Clock
) -> None:
    (well, its_end), (silent, _) = webs
    silent.given = 1
    for _ in range(cluster.MOST_UNANSWERED):
        assert parent._watch() == cluster.ASK_S
        answer(parent, well, its_end)
        assert silent.popen.poll() is None
        clock.now += cluster.ASK_S
    parent._watch()
    assert silent.popen.wait(20) == -9
    assert not silent.ready
    answer(parent, well, its_end)
    assert well.popen.poll() is None


def test_a_long_pause_of_all_processes_counts_once(
    parent: cluster.Cluster, webs: list[tuple[cluster.FrontendProcess, socket.socket]], clock: Clock
) -> None:
    webs[0][0].given = 1
    for _ in range(3 * cluster.MOST_UNANSWERED):
        clock.now += 3600
        assert parent._watch() == cluster.ASK_S
        for web, end in webs:
            answer(parent, web, end)
    assert all(web.ready for web, _ in webs)


def test_who_has_no_connection_is_left_alone_and_the_first_one_begins_it(
    parent: cluster.Cluster, webs: list[tuple[cluster.FrontendProcess, socket.socket]], clock: Clock
) -> None:
    (web, end), (other, _) = webs
    assert parent._watch() is None
    web.given += 1
    assert parent._watch() == cluster.ASK_S
    clock.now += 1
    assert parent._watch() == cluster.ASK_S - 1  # not at once again, whatever wakes the parent
    assert questions(end) == 1
    other.ready = False
    parent._tally.ended[web.index] = 1
    clock.now += cluster.ASK_S
    assert parent._watch() is None
    assert questions(end) == 0


@pytest.mark.parametrize("port", ["tcp_port", "grpc_port"])
def test_connections_of_other_ports_are_not_known(port: str) -> None:
    made = cluster.Cluster("tests.fake", Settings.model_validate({"web_processes": 2, port: 9}))
    assert made._watch() is not None
    made._selector.close()


def test_a_slow_start_is_not_ended_before_the_service_is(
    parent: cluster.Cluster, webs: list[tuple[cluster.FrontendProcess, socket.socket]], clock: Clock
) -> None:
    (web, _), (slow, its_end) = webs
    web.given, slow.ready = 1, False
    for _ in range(2 * cluster.MOST_UNANSWERED):
        parent._watch()
        clock.now += cluster.ASK_S
    assert questions(its_end) == 0
    parent._stopping = True
    for _ in range(cluster.MOST_UNANSWERED + 1):
        parent._watch()
        clock.now += cluster.ASK_S
    assert slow.popen.wait(20) == -9


def test_connections_pass_by_a_web_process_that_does_not_read_them(
    parent: cluster.Cluster, webs: list[tuple[cluster.FrontendProcess, socket.socket]]
) -> None:
    (silent, unread), (well, its_end) = webs
    well.given = 1_000_000  # the other one's turn, were it not for its silence
    with socket.socket() as connection:
        while parent._hand_over(connection) and well.given == 1_000_000:
            pass
        assert silent.given > 0
        assert its_end.recv(10) == messages.CONNECTION
        for _ in range(silent.given):
            unread.recv(10)
        silent.given, silent.unanswered = 0, 2
        assert parent._hand_over(connection)
        assert its_end.recv(10) == messages.CONNECTION


def test_a_web_process_that_cannot_be_given_its_engine_is_killed(
    parent: cluster.Cluster, webs: list[tuple[cluster.FrontendProcess, socket.socket]]
) -> None:
    silent, _ = webs[0]
    silent.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, 1000))
    with socket.socket() as connection, contextlib.suppress(BlockingIOError):
        while True:
            messages.send_connection(silent.sock, connection)
    parent._current, engine = 0, Mock(version="1", profile={})
    engine.engine_fds.return_value = EngineFds(0, LAYOUT, 0, (0, 0), 0, 0)
    parent._engines[0] = engine
    parent._offer(silent)
    assert silent.popen.wait(20) == -9
