"""`smallplates.errors`: errors of the framework get the service's codes."""

import pytest

from smallplates.errors import MAX_SUMMARY, by_status, summary


@pytest.mark.parametrize(
    ("status", "code"), [(404, "not_found"), (405, "method_not_allowed"), (418, "invalid_request")]
)
def test_errors_of_the_framework_get_our_shape(status: int, code: str) -> None:
    error = by_status(status, "text", None)
    assert (error.status, error.code) == (status, code)


def test_a_summary_is_one_short_line() -> None:
    assert summary(RuntimeError("\none\ntwo")) == "RuntimeError: one"
    assert summary(SystemExit()) == "SystemExit"
    assert summary(OSError("caf\udce9 é")) == "OSError: caf? é"
    assert len(summary(RuntimeError("x" * 10_000))) == MAX_SUMMARY
