"""Which Host headers a port that listens on loopback only accepts."""

import pytest

from smallplates.host_names import is_own

NAMES = "models.example.com, Other.example"


@pytest.mark.parametrize(
    "host",
    [
        *(
            "",
            "localhost",
            "LOCALHOST:8000",
            "localhost.",
            "page.localhost",
            "127.0.0.1",
            "127.0.0.1:5000",
        ),
        *("[::1]", "[::1]:8000", "10.1.2.3", "models.example.com", "Models.Example.com:443"),
        *("other.example", "models.example.com."),
    ],
)
def test_own_names(host: str) -> None:
    assert is_own(host, NAMES)


@pytest.mark.parametrize(
    "host",
    [
        *("rebound.example", "localhost.example", "127.0.0.1.example", "notlocalhost", "#", "[::1"),
        *(
            "127.0.0.1@rebound.example",
            "localhost,rebound.example",
            "models.example",
            "example.com",
            "/",
        ),
        *("1", "0x7f.1", "rebound.example:127", "[rebound]", "\xe9", " "),
    ],
)
def test_other_names(host: str) -> None:
    assert not is_own(host, NAMES)
