"""Settings of the page, read from the environment (prefix `UI_`) and checked at start."""

import os
import secrets
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import DirectoryPath, Field, FilePath, PositiveInt, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

MEGABYTE = 1024 * 1024
Seconds = Annotated[float, Field(gt=0, le=24 * 3600)]
ADDRESS = r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"  # no password: visitors see it in the code they copy


class Settings(BaseSettings):
    """Settings; each field is one environment variable: `api_url` is `UI_API_URL`."""

    model_config = SettingsConfigDict(
        env_prefix="UI_", env_ignore_empty=True, use_attribute_docstrings=True
    )

    api_url: str = Field(default="http://127.0.0.1:8000", pattern=ADDRESS)
    """Address at which the page's server reaches the API."""

    api_protocol: Literal["native", "triton"] = "native"
    """`triton`: the Open Inference Protocol, for NVIDIA Triton."""

    public_api_url: str | None = Field(default=None, pattern=ADDRESS)
    """Address of the API in the code that visitors copy. If unset, `UI_API_URL`; the page shows no code
    to visitors who cannot reach that."""

    api_key: SecretStr | None = Field(default=None, min_length=1)
    """Key that the page's server sends to the API; visitors never see it."""

    password_file: FilePath | None = None
    """File with one line: the password that the page demands (HTTP Basic, with any user name). If unset,
    everyone who reaches the page can use the models."""

    host: str = "127.0.0.1"
    """Address that the page listens on; 0.0.0.0 for all interfaces."""

    allowed_hosts: str = ""
    """Names, separated by commas, under which the page may be opened while it listens on loopback only,
    such as those that a reverse proxy on the same machine passes on. `localhost` and addresses are
    always allowed; other names get 421."""

    port: int = Field(default=5000, ge=0, le=65535)
    """Port of the page; 0 chooses a free port."""

    threads: int = Field(default=32, ge=4, le=512)
    """Maximum requests handled at the same time; all but two of them may wait for the API."""

    trusted_proxy: str | None = None
    """Address of a reverse proxy whose X-Forwarded-For and X-Forwarded-Proto headers are trusted. The
    page also relies on the proxy to check visitors: without a password it doesn't warn."""

    max_upload_mb: int = Field(default=14, ge=1, le=200)
    """Maximum size of an upload in MB, for all photos of a form together. In base64 it must fit into the
    API's body limit."""

    connect_timeout_s: Seconds = 2
    """Time limit for connecting to the API."""

    request_timeout_s: Seconds = 30
    """Time limit for the API's answer."""

    retry_after_cap_s: float = Field(default=1, ge=0, le=10)
    """Longest `Retry-After` of a 503 for which the page's server waits; it passes a longer one on to the
    browser."""

    secret_key: SecretStr = Field(
        default_factory=lambda: SecretStr(secrets.token_urlsafe(32)), min_length=16
    )
    """Key that signs predictions for feedback. Set it if several processes serve the page."""

    secrets_dir: DirectoryPath | None = None
    """Folder of secrets: a file `ui_api_key` sets `UI_API_KEY`, unless the variable is set."""

    feedback_dir: Path | None = None
    """Folder for `feedback.jsonl`. If unset, the page doesn't ask for feedback."""

    feedback_keep_photos: bool = False
    """Whether to store photos with their feedback. If so, the page tells visitors."""

    feedback_max_mb: PositiveInt = 100
    """Maximum size of the feedback folder in MB; further feedback is refused."""

    feedback_per_minute: PositiveInt = 30
    """Maximum feedback per minute from one address."""

    def __init__(self, **values: Any) -> None:
        """Also reads the files of `secrets_dir`, for what neither `values` nor the environment set."""
        environment = {name.upper(): value for name, value in os.environ.items()}
        folder = environment.get("UI_SECRETS_DIR")
        super().__init__(_secrets_dir=folder if folder and Path(folder).is_dir() else None, **values)

    @field_validator("api_url", "public_api_url")
    @classmethod
    def strip_slash(cls, value: str | None) -> str | None:
        """Strips the trailing slash. Raises ValueError when the port is not a number up to 65535."""
        if value is None:
            return None
        _ = urlsplit(value).port
        return value.rstrip("/")

    @field_validator("api_key")
    @classmethod
    def check_key(cls, value: SecretStr | None) -> SecretStr | None:
        """Raises ValueError for a key that no header can carry, such as one with a line's end."""
        text = value.get_secret_value() if value else ""
        if text != text.strip() or not text.isprintable():
            raise ValueError("the key has spaces around it or control characters: remove them")
        return value

    @field_validator("password_file")
    @classmethod
    def check_password(cls, value: Path | None) -> Path | None:
        """Raises ValueError for a file that has no usable password."""
        if value is not None:
            read_password(value)
        return value

    @property
    def max_upload_bytes(self) -> int:
        """Largest upload in bytes."""
        return self.max_upload_mb * MEGABYTE


def read_password(file: Path) -> bytes:
    """Returns the only line of a file in UTF-8, without the line's end. Raises ValueError."""
    try:
        text = file.read_text("utf-8-sig").rstrip("\n")  # Python makes this of \r\n, too
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError("the file cannot be read as text in UTF-8") from error
    if not text.strip() or len(text.splitlines()) > 1:
        raise ValueError("the file must have exactly one line, which is the password")
    return text.encode()
