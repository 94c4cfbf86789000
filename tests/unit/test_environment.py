"""`smallplates.system.python`: the environment of the project's processes."""

import os
from unittest.mock import Mock

import pytest

from smallplates.system import python


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_is_called_by_its_number(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("getpass.getuser", Mock(side_effect=error))
    assert python.environment()["LOGNAME"] == str(os.getuid())


def test_a_user_with_a_name_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "anna")
    assert python.environment()["LOGNAME"] == "anna"
