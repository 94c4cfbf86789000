"""`serving.settings`: wrong values fail at start, right ones arrive."""

import pytest
from pydantic import ValidationError

from serving.settings import Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEVICE", "tpu"),
        ("QUEUE_SIZE", "0"),
        ("INSTANCES", "many"),
        ("REQUEST_TIMEOUT_MS", "-1"),
        ("LOG_LEVEL", "loud"),
        ("API_KEY", ""),
    ],
)
def test_wrong_values_fail_at_start(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"SERVING_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        Settings()


def test_values_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_INSTANCES", "3")
    monkeypatch.setenv("SERVING_CORS_ORIGINS", "http://a.example, http://b.example")
    monkeypatch.setenv("SERVING_API_KEY", "secret")
    settings = Settings()
    assert settings.instances == 3
    assert settings.cors_origins == ["http://a.example", "http://b.example"]
    assert "secret" not in repr(settings)


def test_every_setting_is_described() -> None:
    assert all(field.description for field in Settings.model_fields.values())
