"""What notebook 7 reads of perf_analyzer's output, and what it sends."""

import base64
import json

import pytest

from benchmarks import triton
from benchmarks.triton import Layout, Seen
from smallplates.cli.load import payloads
from smallplates.settings import Settings

TABLE = """\
Request Rate,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,\
Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency
50,47.27,125,2475,3704,66,25649,345,0,25196,68558,79023,98662

"""
PRINTED = """
    Request count: 341
    Inference count: 341
    Execution count: 265
"""


def test_the_table_and_the_text_are_read() -> None:
    wanted = Seen(47.27, 25.196, 79.023, 98.662, 3.704, 25.649, 341 / 265)
    assert triton.read(TABLE, PRINTED) == wanted


def test_the_input_is_the_sample() -> None:
    (data,) = json.loads(triton.INPUT.read_text())["data"]
    (photo,) = data["INPUT_IMAGE"]["content"]
    assert base64.b64decode(photo) == payloads.SAMPLE.read_bytes()


def test_a_layout_is_one_of_the_service() -> None:
    layout = Layout(instances=2, preferred_batch_sizes=(4, 8), max_queue_delay_us=500)
    settings = Settings.read(**layout.settings())
    assert (settings.instances, settings.preferred_batch_sizes) == (2, [4, 8])


def test_one_row_is_found() -> None:
    rows = [{"server": "triton", "batch": 1, "p50": 2}, {"server": "triton", "batch": 16, "p50": 9}]
    assert triton.of(rows, "p50", server="triton", batch=16) == 9
    with pytest.raises(ValueError, match="unpack"):
        triton.of(rows, "p50", server="triton")
