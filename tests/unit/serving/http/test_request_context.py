"""`serving.http.request_context.RequestContext`: a request's identifier and its times."""

import pytest

from serving.http.request_context import RequestContext, choose_id


def test_server_timing_is_in_milliseconds() -> None:
    context = RequestContext("id", timings={"decode": 0.0015})
    assert context.server_timing().startswith("decode;dur=1.50, total;dur=")


@pytest.mark.parametrize("offered", [None, b"", b"a b", b"a\nb", b"\xe9", b"x" * 129])
def test_request_ids_are_safe(offered: bytes | None) -> None:
    assert len(choose_id(offered)) == 32
