"""Which workers load a model a second time, for an input that is alone."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from smallplates.engine.memory import Memory, SlotLayout
from smallplates.errors import ConfigurationError
from smallplates.settings import Settings
from smallplates.supervision.worker_process import managed_pipe
from smallplates.tasks.image_classification import image_signatures
from smallplates.worker import queue
from smallplates.worker.process import Worker
from tests.fake.model import CLASSES, write_model
from tests.unit.engine.conftest import worker_args

LAYOUT = SlotLayout(
    slots=2, web_processes=1, workers=3, max_batch=1, signatures=image_signatures((8, 8), CLASSES)
)


def loads_twice(model_dir: Path, index: int, wakes_one: bool, **settings: object) -> bool:
    """Loads the fake model in a worker of this index; returns whether it did so twice."""
    with ExitStack() as held:
        memory = Memory.create(LAYOUT)
        held.callback(memory.close)
        pipes = [managed_pipe(held, 1) for _ in range(4)]
        interactive, bulk, done, control = pipes
        epoll = queue.exclusive_epoll([interactive[0], bulk[0]]) if wakes_one else None
        if wakes_one and epoll is None:
            pytest.skip("here every record wakes all idle workers")
        args = worker_args(
            memory,
            index=index,
            backend="tests.fake.backend:FakeBackend",
            model="fake",
            model_dir=str(model_dir),
            work_pipes=(interactive, bulk),
            done_fds=(done[1],),
            epoll_fd=os.dup(epoll.fileno()) if epoll else None,  # the worker closes its own
            control_fd=control[0],
        )
        worker = Worker(args, Settings.model_validate({"idle_threads": 2, **settings}))
        report = worker.load()
        wanted = 2 if settings.get("intra_op_threads", 1) == 1 else None
        assert report.single_request_threads == wanted
        return worker._executor.all_cores_backend is not None


@pytest.mark.parametrize("wakes_one", [True, False])
def test_only_those_that_an_idle_service_wakes_load_twice(tmp_path: Path, wakes_one: bool) -> None:
    write_model(tmp_path, "1")
    expected = [True, True, not wakes_one]
    assert [loads_twice(tmp_path, index, wakes_one) for index in range(3)] == expected


def test_nobody_loads_twice_where_every_input_has_as_many_threads(tmp_path: Path) -> None:
    write_model(tmp_path, "1")
    assert not loads_twice(tmp_path, 0, wakes_one=False, intra_op_threads=2)


def test_a_worker_checks_the_digest_of_what_it_loads(tmp_path: Path) -> None:
    write_model(tmp_path, "1")
    with pytest.raises(ConfigurationError, match="SERVING_MODEL_SHA256 does not list fake="):
        loads_twice(tmp_path, 0, wakes_one=False, model_sha256="0" * 64)
