"""`smallplates.web.http.request_context.RequestContext`: a request's identifier and its times."""

import pytest

from smallplates.engine.statistics import Timings
from smallplates.errors import InternalError, WorkerCrashedError
from smallplates.web.api.dialect import ERRORS
from smallplates.web.http.request_context import RequestContext, choose_id, to_client_error


def test_server_timing_is_in_milliseconds() -> None:
    context = RequestContext("id", inference=Timings(0.0015, 0, 0.02))
    words = "decode;dur=1.50, queue;dur=0.00, infer;dur=20.00, total;dur="
    assert context.server_timing().startswith(words)


@pytest.mark.parametrize("error", [KeyError("x"), InternalError("x"), WorkerCrashedError("two crashed")])
def test_no_failure_is_called_retriable(error: Exception) -> None:
    seen = to_client_error(error, RequestContext("id"))
    assert seen.status == 500
    assert "Retry-After" not in seen.headers
    assert "retr" not in seen.detail
    assert "retr" not in ERRORS[500][0]


@pytest.mark.parametrize("offered", [None, b"", b"a b", b"a\nb", b"\xe9", b"x" * 129])
def test_request_ids_are_safe(offered: bytes | None) -> None:
    assert len(choose_id(offered)) == 32
