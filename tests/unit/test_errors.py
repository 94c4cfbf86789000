"""`smallplates.errors`: errors of the framework get the service's codes."""

import pytest

from smallplates.errors import by_status


@pytest.mark.parametrize(
    ("status", "code"), [(404, "not_found"), (405, "method_not_allowed"), (418, "invalid_request")]
)
def test_errors_of_the_framework_get_our_shape(status: int, code: str) -> None:
    error = by_status(status, "text", None)
    assert (error.status, error.code) == (status, code)
