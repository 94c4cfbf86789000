"""All settings of the service, read from the environment (prefix `SERVING_`) and checked at start."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

ROOT = Path(__file__).resolve().parent.parent


class Settings(BaseSettings):
    """One field, one environment variable: `queue_size` is `SERVING_QUEUE_SIZE`."""

    model_config = SettingsConfigDict(
        env_prefix="SERVING_", use_attribute_docstrings=True, protected_namespaces=()
    )

    model_dir: Path = ROOT / "models" / "food11"
    """Folder with `model.json` and the weights."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cuda` refuses to start without a usable GPU; `auto` falls back to the CPU and says so."""

    instances: PositiveInt | Literal["auto"] = "auto"
    """Batches that are computed at the same time; `auto`: one per usable core on a CPU, 1 on a GPU."""

    intra_op_threads: PositiveInt = 1
    """Threads that one instance uses for one batch on a CPU."""

    queue_size: PositiveInt = 256
    """Requests admitted at the same time; one more is answered 503 `overloaded`."""

    request_timeout_ms: PositiveInt = 30_000
    """Time from a request's last byte to its answer; a client may ask for less, not for more."""

    body_timeout_ms: PositiveInt = 30_000
    """Time a client has to send its body."""

    max_body_bytes: PositiveInt = 20 * 1024 * 1024
    """Largest body that is accepted, in bytes."""

    max_buffered_bytes: PositiveInt = 256 * 1024 * 1024
    """Bodies held at the same time, all requests together; more is answered 503 `overloaded`."""

    max_image_pixels: PositiveInt = 50_000_000
    """Largest picture that is decoded, width times height; checked before decoding."""

    api_key: SecretStr | None = Field(default=None, min_length=1)
    """When set, `/predict` asks for `Authorization: Bearer KEY`."""

    cors_origins: Annotated[list[str], NoDecode] = []
    """Origins, separated by commas, whose pages may call the API from a browser; empty: none."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """`info` logs one line a request; `warning` only what went wrong."""

    log_format: Literal["json", "console"] = "json"
    """`json`: one object a line, for machines; `console`: for people."""

    @field_validator("cors_origins", mode="before")
    @classmethod
    def split_origins(cls, value: object) -> object:
        """`http://a, http://b` -> two origins."""
        if isinstance(value, str):
            return [origin.strip() for origin in value.split(",") if origin.strip()]
        return value
