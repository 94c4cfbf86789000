"""`smallplates.settings`: wrong values fail at start, right ones arrive."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from smallplates import settings
from smallplates.errors import ConfigurationError
from smallplates.settings import Settings

WRONG = {
    "DEVICE": ["tpu"],
    "QUEUE_SIZE": ["0", "5000"],
    "INSTANCES": ["many", "100000"],
    "MAX_BATCH_SIZE": ["0"],
    "MAX_QUEUE_DELAY_US": ["-1"],
    "PREFERRED_BATCH_SIZES": ["4,0"],
    "DEVICES": ["0,x"],
    "GPU_MEMORY_FRACTION": ["0"],
    "WEB_PROCESSES": ["0"],
    "PORT": ["70000"],
    "REQUEST_TIMEOUT_MS": ["-1", str(10**20)],
    "LOG_LEVEL": ["loud"],
    "API_KEY": ["", "sesame\r"],
    "ADMIN_KEY": [" chief", "ch\x1bief"],
    "HOST": [""],
    "SHUTDOWN_TIMEOUT_S": ["inf"],
    "TCP_IDLE_TIMEOUT_S": ["1e300"],
    "MAX_BODY_BYTES": ["3000000000"],
    "MAX_CONNECTIONS": [str(10**20)],
    "OTLP_ENDPOINT": ["127.0.0.1:4318", "http://127.0.0.1:4318/?a=b"],
    "ALIASES": ["a", "a=b,=c", "a="],
    "SECRETS_DIR": ["/nowhere", ""],
    "MODEL_DIR": [""],
    "MODEL_STORE": [""],
    "CACHE_DIR": ["", " "],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_wrong_values_fail_at_start(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"SERVING_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        Settings()


def test_values_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_INSTANCES", "3")
    monkeypatch.setenv("SERVING_CORS_ORIGINS", "http://a.example, http://b.example")
    monkeypatch.setenv("SERVING_API_KEY", "hush-hush")
    monkeypatch.setenv("SERVING_DEVICES", "0, 1")
    monkeypatch.setenv("SERVING_ALIASES", "org/a=one, b=one,")
    monkeypatch.setenv("SERVING_PREFERRED_BATCH_SIZES", "4,8")
    settings = Settings()
    assert settings.instances == 3
    assert settings.devices == [0, 1]
    assert settings.preferred_batch_sizes == [4, 8]
    assert settings.aliases == {"org/a": "one", "b": "one"}
    assert settings.cors_origins == ["http://a.example", "http://b.example"]
    assert "hush" not in repr(settings)


@pytest.mark.parametrize("variable", ["SERVING_SECRETS_DIR", "serving_secrets_dir"])
def test_secrets_come_from_files_unless_the_environment_has_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    (tmp_path / "serving_api_key").write_text("from a file\n")
    (tmp_path / "serving_admin_key").write_text("from a file\n")
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("SERVING_ADMIN_KEY", "from the environment")
    settings = Settings()
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == "from a file"
    assert settings.admin_key is not None
    assert settings.admin_key.get_secret_value() == "from the environment"


def test_every_setting_is_described() -> None:
    assert all(field.description for field in Settings.model_fields.values())


def test_traces_need_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert Settings().otlp_endpoint == "http://127.0.0.1:4318"
    monkeypatch.setattr(settings, "find_spec", {"opentelemetry": object()}.get)
    with pytest.raises(ValidationError, match="need the extra otel"):
        Settings()


def test_a_models_own_settings_beat_the_common_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    common = Settings(instances=4, precision="fp32", queue_size=7)
    monkeypatch.setenv("SERVING_INSTANCES__MY_MODEL_2", "3")
    described = {"instances": 2, "max_batch_size": 8, "max_queue_delay_us": None}
    own = common.of_model("my-model.2", described)
    assert (own.instances, own.max_batch_size, own.max_queue_delay_us) == (3, 8, 0)
    assert (own.precision, own.queue_size) == ("fp32", 7)
    assert common.of_model("other", described).instances == 2
    assert (common.instances, common.max_batch_size) == (4, "auto")


@pytest.mark.parametrize(
    ("variable", "described", "words"),
    [
        ("0", {}, "SERVING_INSTANCES__MINE: "),
        ("many", {"instances": 2}, "SERVING_INSTANCES__MINE: "),
        (None, {"instances": 2000}, "instances in model.json: "),
    ],
)
def test_a_models_wrong_settings_are_named(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, described: dict[str, int], words: str
) -> None:
    if variable is not None:
        monkeypatch.setenv("SERVING_INSTANCES__MINE", variable)
    with pytest.raises(ConfigurationError, match=words):
        Settings().of_model("mine", described)


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("SERVING_INSTANCE", "SERVING_INSTANCES"),
        ("serving_instance", "SERVING_INSTANCES"),
        ("SERVING_INSTANCES__FOD11", "SERVING_INSTANCES__FOOD11"),
        ("serving_instances__food11", "SERVING_INSTANCES__FOOD11"),
        ("SERVING_QUEUE_SIZE__FOOD11", "SERVING_QUEUE_SIZE"),
        ("SERVING_INSTANCES_FOOD11", "SERVING_INSTANCES__FOOD11"),
        ("SERVING_PORTS", "SERVING_PORT"),
        ("SERVING_CORS_ORIGIN", "SERVING_CORS_ORIGINS"),
        ("SERVING_XYZZY", None),
    ],
)
def test_a_variable_that_nothing_reads_is_found(
    variable: str, nearest: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    assert settings.unknown_variables(["food11", "my-model"])[variable] == nearest


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("serving_instances", "2"),
        ("SERVING_MAX_BATCH_SIZE__MY_MODEL", "2"),
        ("SERVING_CPUS", "2"),
        ("SERVING_MEMORY", "2g"),
        ("SERVING_URL", "http://a.example"),
        ("SERVING_TEST_CHROMIUM", "chromium"),
        ("SERVING_SERVICE_HOST", "10.0.0.1"),
        ("SERVING_SERVICE_PORT", "8000"),
        ("SERVING_SERVICE_PORT_HTTP", "8000"),
        ("SERVING_PORT", "tcp://10.0.0.1:8000"),
        ("SERVING_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("SERVING_PORT_8000_TCP_PROTO", "tcp"),
        ("SERVING_FOOD_SERVICE_HOST", "10.0.0.1"),
        ("SERVING_FOOD_PORT", "udp://10.0.0.1:8000"),
        ("SERVING_FOOD_PORT_8001_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_what_others_read_or_set_is_not_unknown(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert variable not in settings.unknown_variables(["food11", "my-model"])
