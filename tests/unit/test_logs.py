"""`serving.logs.Sink`: what standard error does not take is lost, and nothing else."""

import os
from pathlib import Path

from serving.logs import Sink

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
