"""Settings of the page: defaults, and wrong values that keep it from starting."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from flask_app.settings import Settings


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields:
        monkeypatch.delenv(f"UI_{field.upper()}", raising=False)


def test_the_key_may_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ui_api_key").write_text("from a file\n")
    monkeypatch.setenv("UI_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("UI_API_KEY", "")  # as a compose file passes on what is not set
    key = Settings().api_key
    assert key is not None
    assert key.get_secret_value() == "from a file"


def test_secrets_are_new_and_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UI_API_KEY", "hush-hush")
    assert "hush" not in repr(Settings())
    assert Settings().secret_key != Settings().secret_key
    assert Settings(api_url="http://api:8000/base/").api_url == "http://api:8000/base"


HOSTS = ["ftp://api", "api:8000", "http://api/?x=1", "http://user:password@api", "http://[::1"]
WRONG = {
    "API_URL": [*HOSTS, "http://api:70000"],
    "API_KEY": ["sesame\r"],
    "REQUEST_TIMEOUT_S": ["inf", "-1"],
    "PORT": ["70000", "web"],
    "MAX_UPLOAD_MB": ["0"],
    "THREADS": ["1"],
    "SECRET_KEY": ["short"],
    "FEEDBACK_KEEP_PHOTOS": ["perhaps"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_wrong_values_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"UI_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        Settings()
