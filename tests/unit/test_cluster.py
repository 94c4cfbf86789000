"""The parent of several web processes, where the system refuses it something."""

import errno
import json
import subprocess
from collections.abc import Iterator

import pytest

from serving import cluster, control
from serving.engine.memory import Tally
from serving.engine.supervisor import Supervisor
from serving.settings import Settings


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[cluster.Cluster]:
    """One whose processes have not been started."""
    monkeypatch.setattr(cluster, "RESTART_S", 0.01)
    made = cluster.Cluster("tests.fake", Settings(web_processes=2))
    made._tally = Tally.create(2)
    made._folder = None
    yield made
    made._selector.close()


def refused(*_: object, **__: object) -> None:
    """What the system says."""
    raise OSError(errno.EAGAIN, "not now")


def test_who_asks_for_a_version_is_answered_where_its_engine_cannot_be_started(
    parent: cluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "_make", refused)
    ours, theirs = control.pair()
    with ours, theirs, subprocess.Popen(["true"]) as program:
        parent._load(cluster.Web(0, program, ours), "1")
        parent._loaders[0].join()
        parent._on_news()
        answer = json.loads(theirs.recv(control.MAX_MESSAGE))
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
