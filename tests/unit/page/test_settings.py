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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UI_API_URL", "ftp://api"),
        ("UI_API_URL", "api:8000"),
        ("UI_API_URL", "http://api/?x=1"),
        ("UI_API_URL", "http://user:password@api"),
        ("UI_API_URL", "http://[::1"),
        ("UI_API_URL", "http://api:70000"),
        ("UI_API_KEY", "sesame\r"),
        ("UI_REQUEST_TIMEOUT_S", "inf"),
        ("UI_PORT", "70000"),
        ("UI_PORT", "web"),
        ("UI_MAX_UPLOAD_MB", "0"),
        ("UI_REQUEST_TIMEOUT_S", "-1"),
        ("UI_THREADS", "1"),
        ("UI_SECRET_KEY", "short"),
        ("UI_FEEDBACK_KEEP_PHOTOS", "perhaps"),
    ],
)
def test_wrong_values_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError, match=name.removeprefix("UI_").lower()):
        Settings()
