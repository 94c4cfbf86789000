"""The logs: one form for all, and what standard error does not take is lost, and nothing else."""

import json
import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smallplates.logging import Sink, configure_logging, logger
from smallplates.settings import Settings

pytestmark = pytest.mark.usefixtures("root")
LINE = b"x" * 199 + b"\n"


def test_a_pipe_that_nobody_reads_costs_lines_and_says_how_many() -> None:
    reader, writer = os.pipe()
    sink = Sink(writer)
    for _ in range(1000):
        sink.write(LINE)
    held = os.read(reader, 1 << 20)
    sink.write(LINE)
    said, last = os.read(reader, 1 << 20).splitlines(keepends=True)
    assert held == LINE * (len(held) // len(LINE))
    assert b'"lines":%d,' % (1000 - len(held) // len(LINE)) in said
    assert last == LINE
    sink.write(LINE)
    assert os.read(reader, 1 << 20) == LINE
    for fd in (reader, writer):
        os.close(fd)


def test_long_lines_are_whole_where_there_is_room(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        Sink(file.fileno()).write(LINE * 1000)
    assert (tmp_path / "log").read_bytes() == LINE * 1000


def test_a_reader_that_has_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    sink = Sink(writer)
    sink.write(LINE)
    sink.write(LINE)
    os.close(writer)
    sink.write(LINE)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """Its handlers are as before afterwards."""
    root_logger = logging.getLogger()
    before = list(root_logger.handlers)
    yield root_logger
    root_logger.handlers[:] = before


def test_libraries_log_in_our_form(root: logging.Logger, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        configure_logging(Settings())
    root.info("nobody wants to know")
    logging.getLogger("uvicorn.error").warning("Invalid %s received.", "request")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("asyncio").exception("a task failed")
    first, second = map(json.loads, capfd.readouterr().err.splitlines())
    assert (first["event"], first["level"]) == ("Invalid request received.", "warning")
    assert (second["event"], second["logger"]) == ("a task failed", "asyncio")
    assert second["exception"].endswith("ValueError: broken")


def test_fields_of_every_line(root: logging.Logger, capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings(), model="food11")
    root.warning("one")
    logger().warning("two", model="another")
    configure_logging(Settings())
    logger().warning("three")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line.get("model") for line in lines] == ["food11", "another", None]


def test_a_path_that_is_not_utf_8_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings())
    logger().warning("loading", folder=os.fsdecode(b"caf\xe9 \xc3\xa9"), load_s=1.5)
    line = json.loads(capfd.readouterr().err)
    assert (line["folder"], line["load_s"]) == ("caf? é", 1.5)


def test_a_path_cannot_paint_on_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings(log_format="console"))
    logger().info("no such path", path="/\x1b[2J\x9b1A\0é", status=404)
    logging.getLogger("uvicorn.error").warning("one\nline")
    said = capfd.readouterr().err
    assert "path=/\\x1b[2J\\x9b1A\\x00é" in said
    assert "one\\nline" in said
    assert said.replace("\n", "").isprintable()
    assert len(said.splitlines()) == 2


@pytest.mark.parametrize("zone", ["UTC+200", "UTC-5"])
def test_lines_for_people_have_the_local_time(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    configure_logging(Settings(log_format="console"))
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        before = time.strftime("%H:%M:%S")
        logger().info("any event")
        after = time.strftime("%H:%M:%S")
    time.tzset()
    assert capfd.readouterr().err.split()[0] in (before, after)


def test_tracebacks_for_people_show_no_variables(
    root: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    configure_logging(Settings(log_format="console"))
    api_key = "secret" + str(len(root.name))
    try:
        raise ValueError("broken")
    except ValueError:
        logger().exception("inference failed")
    said = capfd.readouterr().err
    assert "ValueError: broken" in said
    assert api_key not in said


ROUTE = {"method": "POST", "path": "/predict", "client": "::1", "request_id": "7f3a", "code": "ok"}
READY = {"load_s": 1.42, "precision": "int8", "backend": "onnxruntime 1.31", "instances": 2}
COMPARED = {"onnxruntime fp32": 1.31, "onnxruntime int8": 0.6}
TIMES = {"batch_cap": 2, "batch_ms": {"1": 1.0, "2": 1.4}, "compared": COMPARED}
DEAD = {"model": "a long name", "worker": 0, "exit_code": 3, "reason": "ended", "restart_in_s": 0.4}
LINES: list[tuple[str, dict[str, Any], str]] = [
    (
        "info: request",
        {**ROUTE, "status": 200, "model": "food11", "ms": {"decode": 1.23, "total": 4.56}},
        "200        POST /predict  food11  4.6 ms (decode 1.2)",
    ),
    (
        "info: request",
        {**ROUTE, "status": 404, "code": "not_found", "ms": {"total": 0.2}},
        "404        POST /predict  0.2 ms  not_found",
    ),
    (
        "warning: request",
        {**ROUTE, "status": 500, "code": "internal_error", "ms": {"total": 0.2}},
        "500        warning: POST /predict  0.2 ms  internal_error  7f3a",
    ),
    (
        "info: model ready",
        {"model": "food11", **READY, **TIMES, "gpu_uuid": None},
        "food11     ready in 1.4 s: int8 on onnxruntime 1.31, 2 workers, batches up to 2, "
        "0.7 ms an item (compared: onnxruntime fp32 1.3, onnxruntime int8 0.6)",
    ),
    (
        "error: an inference worker died",
        DEAD,
        "a long name error: worker 0 ended; its requests are computed again, and it starts again in "
        "0.4 s",
    ),
    ("info: listening", {"host": "::1", "port": 80}, "listening on http://[::1]:80"),
    ("info: loading", {"model": "food11", "folder": "x/y"}, "food11     loading x/y"),
    ("info: shutting down", {"inputs": 3}, "shutting down; inputs in flight: 3"),
    ("warning: of a library", {"logger": "a", "count": 0}, "warning: of a library logger=a"),
]


@pytest.mark.parametrize(("event", "fields", "line"), LINES)
def test_lines_for_people(
    capfd: pytest.CaptureFixture[str], event: str, fields: dict[str, Any], line: str
) -> None:
    configure_logging(Settings(log_format="console"))
    level, _, event = event.partition(": ")
    getattr(logger(), level)(event, **fields)
    time, _, said = capfd.readouterr().err.rstrip("\n").partition(" ")
    assert re.fullmatch(r"\d\d:\d\d:\d\d", time)
    assert said.strip() == line
