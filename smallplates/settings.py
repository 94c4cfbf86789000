"""Settings of the service: read from the environment, prefix `SERVING_`, and checked at start.

Composition roots make them and pass them on; a worker makes its own from the same environment.
"""

import os
import re
from collections.abc import Container, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    DirectoryPath,
    Field,
    NonNegativeInt,
    PositiveInt,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from smallplates import extras
from smallplates.errors import ConfigurationError, in_words
from smallplates.protocols import PROTOCOLS

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
FOOD11 = next(filter(Path.is_dir, [PACKAGE / "food11"]), ROOT / "models" / "food11")
"""The shipped model: in the package where that is installed, beside it in a checkout."""

if TYPE_CHECKING:
    Protocol = str
else:
    Protocol = Literal[(*PROTOCOLS,)]
DAY_S = 24 * 3600  # longest wait: timers do not take every number
Milliseconds = Annotated[int, Field(ge=1, le=1000 * DAY_S)]
Seconds = Annotated[float, Field(gt=0, le=DAY_S)]
AtMost1024 = Annotated[int, Field(ge=1, le=1024)]
Digest = Annotated[str, Field(pattern=r"^([^=]+=)?[0-9a-f]{64}$")]
AtMostAMillion = Annotated[int, Field(ge=1, le=1_000_000)]
OF_A_MODEL = (
    "instances",
    "max_batch_size",
    "max_queue_delay_us",
    "max_wait_ms",
    "precision",
    "idle_unload_s",
)
"""Settings that a model may have of its own."""

NOT_OURS = re.compile(
    r"(?s)SERVING_(URL|CPUS|MEMORY|TEST_.*|(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+))=.*"
    r"|\w+=(tcp|udp|sctp)://.*"
)
"""Variables of the client, the compose files, the tests, and Kubernetes for a Service `serving-...`."""


class Settings(BaseSettings):
    """Settings, one environment variable each: `queue_size` is `SERVING_QUEUE_SIZE`."""

    model_config = SettingsConfigDict(
        env_prefix="SERVING_", use_attribute_docstrings=True, protected_namespaces=()
    )

    model_dir: Path = FOOD11
    """Model folder with `model.json` and the weights, or an .onnx file."""

    models: Annotated[list[str], NoDecode] = []
    """Model folders to serve, separated by commas: `models/food11,sentiment=path/to/export`. Write
    `NAME=` in front of a folder to give the model another name. The first model is the default. If
    empty, only `SERVING_MODEL_DIR` is served."""

    aliases: Annotated[dict[str, str], NoDecode] = {}
    """More names of models, separated by commas: `text-embedding-3-small=minilm` lets clients call
    `minilm` by the name of OpenAI's model."""

    model_store: DirectoryPath | None = None
    """Folder of model folders that can be loaded while the service runs, each under its folder's
    name."""

    model_sha256: Annotated[list[Digest] | None, NoDecode, Field(min_length=1)] = None
    """SHA-256 of each `model.json` that may be served, separated by commas: `NAME=DIGEST,...`, or one
    digest alone. `model.json` contains the digests of the weights. No other model or version is served,
    at startup or later. Useful if several machines have copies of the folders."""

    cache_dir: Path | None = None
    """Folder in which a start keeps its measurements on a CPU for the next one: the choice of runtime
    and precision, workers and threads, batch sizes. The next start reuses them if the model's files, the
    processor, the versions of the libraries and the settings are the same. Several services may share
    it. If unset, every start measures."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: a GPU if one is usable, otherwise the CPU, with a log message. `cuda`: refuses to start
    without a usable GPU."""

    devices: Annotated[list[NonNegativeInt], NoDecode] = []
    """Indices of the GPUs to use, separated by commas. If empty, the first GPU."""

    gpu_memory_fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of a GPU's memory that one instance may use."""

    precision: Literal["auto", "fp32", "fp16", "bf16", "int8"] = "auto"
    """`auto`: on a GPU fp16; on a CPU bf16, or int8 if the model has a suitable file. Each is used only
    if it matches fp32's answers and, on a CPU, is faster; otherwise fp32. `trials` in `/model` has the
    measurements."""

    cpu_runtime: Literal["auto", "onnxruntime", "openvino"] = "auto"
    """Runtime of fastapi_onnx on a CPU. `auto`: the faster one, measured at startup."""

    cpu_runtime_mb: PositiveInt | Literal["auto"] = "auto"
    """Memory limit in MB for OpenVINO in each worker if `SERVING_CPU_RUNTIME` is `auto`. `auto`: 130
    plus 1.5 times the size of the weights."""

    cuda_graphs: bool = True
    """`true`: record each batch size as a CUDA graph and launch it as a whole. `false`: launch each
    kernel separately."""

    instances: AtMost1024 | Literal["auto"] = "auto"
    """Workers per device. `auto`: on a CPU, for the default model the number of usable cores divided by
    `SERVING_INTRA_OP_THREADS`, and 1 for each other model; on a GPU, 1. If one instance uses all cores,
    another one stands by."""

    intra_op_threads: AtMost1024 | Literal["auto"] = "auto"
    """Threads per instance for one batch on a CPU. `auto`: measured at startup for the default model if
    `SERVING_INSTANCES` is also `auto`, see `/model`; otherwise 1."""

    idle_threads: AtMost1024 | Literal["auto"] = "auto"
    """Threads for an input that is computed alone, if that is faster. `auto`: all usable cores, up to
    16."""

    max_batch_size: Annotated[int, Field(ge=1, le=512)] | Literal["auto"] = "auto"
    """Largest batch, in items. `auto`: measured at startup, see `/model`."""

    max_queue_delay_us: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """How long, in microseconds, a free worker waits for more items before it computes. 0: not at
    all."""

    preferred_batch_sizes: Annotated[list[AtMost1024], NoDecode] = []
    """Batch sizes, separated by commas, that are computed without waiting for more items."""

    idle_unload_s: Annotated[float, Field(ge=0, le=DAY_S)] = 0
    """Seconds without a request after which a model's workers end, so that the system gets their memory
    back. The next request starts them again and waits, within its time limit. 0: never."""

    queue_size: Annotated[int, Field(ge=1, le=4096)] = 256
    """Maximum inputs in flight, queued or running; further requests get 503 `overloaded`."""

    max_wait_ms: Milliseconds | None = None
    """Longest time in milliseconds that a request may have to wait for a worker. If the estimate is
    longer, because of the requests before it, the request gets 503 `overloaded` at once. If unset, only
    its own time limit counts."""

    web_processes: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = "auto"
    """Processes that speak HTTP. `auto`: 1 on up to two cores; on more cores, the fewest that keep the
    workers busy, measured at startup, see `/model`; on a GPU, one per core that no worker needs."""

    worker_timeout_ms: Milliseconds | Literal["auto"] = "auto"
    """Time limit for one batch, after which the worker is replaced. `auto`: 20 times the slowest batch,
    at least 3 s."""

    shutdown_timeout_s: Seconds = 25
    """Time limit at shutdown for answering accepted requests, after `SERVING_SHUTDOWN_DELAY_S`."""

    shutdown_delay_s: Annotated[float, Field(ge=0, le=DAY_S)] = 0
    """Time after SIGTERM during which only the readiness check fails, so that load balancers stop
    sending requests."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all interfaces."""

    allowed_hosts: str = ""
    """Names, separated by commas, under which the API may be called while it listens on loopback only,
    such as those that a reverse proxy on the same machine passes on. `localhost` and addresses are
    always allowed; other names get 421."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 chooses a free port."""

    tcp_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port for requests over plain TCP; 0 chooses a free port. If unset, plain TCP is off."""

    tcp_max_connections: AtMostAMillion = 256
    """Maximum TCP connections per web process. At the limit, a new connection replaces the one that is
    idle longest; if none is idle, it gets `overloaded` and is closed."""

    tcp_idle_timeout_s: Seconds = 60
    """Idle time after which a TCP connection is closed."""

    request_timeout_ms: Milliseconds = 30_000
    """Time limit from a request's last byte to its answer. If a client asks for a longer one, this one
    applies."""

    max_connections: Annotated[int, Field(ge=16, le=1_000_000)] = 4096
    """Maximum HTTP connections per web process. At the limit, a new connection replaces the one that is
    idle longest. The system's limit on open files may lower the number."""

    head_timeout_ms: Milliseconds = 20_000
    """Time limit for a client to send the request line and headers."""

    body_timeout_ms: Milliseconds = 30_000
    """How long a client may take to send a body, or to read each part of a large answer."""

    max_body_bytes: Annotated[int, Field(ge=1, le=2**31 - 1)] = 20 * 1024 * 1024
    """Maximum size of a request body in bytes."""

    max_request_items: AtMostAMillion = 4096
    """Maximum inputs per request, in every protocol. A request holds at most a quarter of
    `SERVING_QUEUE_SIZE`, or half if many workers need it; its other inputs wait in the web process."""

    max_answer_bytes: PositiveInt = 256 * 1024 * 1024
    """Maximum size of an answer in bytes, measured on the network's outputs before they become JSON."""

    max_buffered_bytes: PositiveInt = 256 * 1024 * 1024
    """Memory limit in bytes for the request bodies that one web process buffers, also while it
    decompresses them; further requests get 503 `overloaded`. Paths that need no key have a second limit
    of the same size. So have answers over 64 KB until they are sent, or `SERVING_MAX_ANSWER_BYTES` if
    that is more."""

    max_image_pixels: PositiveInt = 52_000_000
    """Maximum width times height of an image, checked before decoding."""

    long_text: Literal["refuse", "truncate"] = "refuse"
    """What a classifier does with a text that has too many tokens. `refuse`: return 413 `text_too_long`.
    `truncate`: use only the first tokens."""

    accept_token_ids: bool = False
    """Whether OpenAI's and TEI's clients may send token ids in place of texts. They must be those of the
    model's own tokenizer; by default they are refused, because most clients send those of OpenAI's."""

    api_key: SecretStr | None = Field(default=None, min_length=1)
    """If set, `/predict` and the other inference paths require `Authorization: Bearer KEY`, or
    `api-key: KEY`."""

    admin_key: SecretStr | None = Field(default=None, min_length=1)
    """If set, v2's repository calls can load models and versions; such requests need this key as a
    bearer token."""

    secrets_dir: DirectoryPath | None = None
    """Folder of secrets: a file `serving_api_key` sets `SERVING_API_KEY`, unless the variable is set."""

    protocols: Annotated[list[Protocol], NoDecode] = list(PROTOCOLS)
    """Protocols to serve in addition to the native API, separated by commas. If empty, none. The gRPC
    port serves those of `v2`, `tfserving` and `torchserve` that are listed."""

    grpc_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of gRPC, for the Open Inference Protocol, TensorFlow Serving and TorchServe. If unset, gRPC
    is off."""

    grpc_max_connections: AtMostAMillion = 256
    """Maximum gRPC connections per web process; further ones are closed at once."""

    cors_origins: Annotated[list[str], NoDecode] = []
    """Origins, separated by commas, whose pages may call the API from a browser. If empty, none."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """`debug`: also health checks and `/metrics`. `info`: one line per request, and models that are
    loaded or unloaded. `warning`: requests that fail with 500 or more, also refusals (503). `error`:
    what can't be served. If more than 20 requests are refused within a second, one line counts the
    others; `debug` logs all of them."""

    log_format: Literal["json", "console"] = "json"
    """`json`: one object per line, for machines. `console`: easier for people to read. If it is not set,
    `smallplates serve` uses `console`."""

    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$")] | None = None
    """Base URL of an OpenTelemetry collector (OTLP over HTTP) that receives traces, such as
    `http://127.0.0.1:4318`. If unset, there are no traces. Needs the extra `otel`."""

    def __init__(self, **values: Any) -> None:
        """Also reads the files of `secrets_dir`, for what neither `values` nor the environment set.

        Vertex AI names the port in AIP_HTTP_PORT.
        """
        environment = {name.upper(): value for name, value in os.environ.items()}
        if "AIP_HTTP_PORT" in environment and "SERVING_PORT" not in environment:
            values.setdefault("port", environment["AIP_HTTP_PORT"])
        folder = environment.get("SERVING_SECRETS_DIR")
        super().__init__(_secrets_dir=folder if folder and Path(folder).is_dir() else None, **values)

    @property
    def threads(self) -> int:
        """Threads per instance; 1 for `auto` unless a worker has measured them."""
        return 1 if self.intra_op_threads == "auto" else self.intra_op_threads

    @classmethod
    def read(cls, **values: str | int) -> "Settings":
        """Reads the environment, which `values` of the command line override.

        Raises ConfigurationError with the names of flags and variables.
        """
        try:
            return cls(**values)
        except ValidationError as error:
            raise ConfigurationError(in_words(error, partial(flag_or_variable, values))) from error
        except (SettingsError, OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"SERVING_SECRETS_DIR cannot be read: {error}") from error

    def of_model(self, name: str, described: Mapping[str, Any]) -> "Settings":
        """Returns the settings of a model: SERVING_SETTING__NAME, else `described`, else these.

        NAME is in capital letters, with `_` for what is no letter or digit. `described` is from its
        model.json. Raises ConfigurationError.
        """
        settings = self.model_copy()
        for field in OF_A_MODEL:
            variable = variable_of_model(field, name)
            place, value = f"{field} in model.json", described.get(field)
            if variable in os.environ:
                place, value = variable, os.environ[variable]
            try:
                if value is not None:
                    self.__pydantic_validator__.validate_assignment(settings, field, value)
            except ValidationError as error:
                raise ConfigurationError(in_words(error).replace(field, place, 1)) from error
        return settings

    @field_validator(
        *("cors_origins", "devices", "model_sha256", "models", "protocols", "preferred_batch_sizes"),
        mode="before",
    )
    @classmethod
    def split_list(cls, value: object) -> object:
        """Splits text at its commas: `a, b` has two values."""
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return value

    @field_validator("aliases", mode="before")
    @classmethod
    def split_aliases(cls, value: object) -> object:
        """Splits text at its commas, and each part at its first `=`."""
        if not isinstance(value, str):
            return value
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        if any(not alias.strip() or not name.strip() for alias, _, name in pairs):
            raise ValueError("write ALIAS=MODEL,...")
        return {alias.strip(): name.strip() for alias, _, name in pairs}

    @field_validator("model_dir", "model_store", "cache_dir", "secrets_dir", mode="before")
    @classmethod
    def check_folder(cls, value: object) -> object:
        """Checks that a path is not empty, which would mean the current folder."""
        if isinstance(value, str) and not value.strip():
            raise ValueError("the path is empty: unset it, or write . for the current folder")
        return value

    @field_validator("otlp_endpoint")
    @classmethod
    def check_extra(cls, value: str | None) -> str | None:
        """Checks that the packages are there: FastAPI itself brings OpenTelemetry's API only."""
        if value and not (find_spec("opentelemetry") and find_spec("opentelemetry.exporter")):
            raise ValueError(f"traces need the extra otel: {extras.install('otel')}")
        return value

    @field_validator("api_key", "admin_key")
    @classmethod
    def check_key(cls, value: SecretStr | None) -> SecretStr | None:
        """Checks that a key has no spaces around it: a file's line end would lock everybody out."""
        text = value.get_secret_value() if value else ""
        if text != text.strip() or not text.isprintable():
            raise ValueError("the key has spaces around it or control characters: remove them")
        return value


def flag_or_variable(flags: Container[str], name: str) -> str:
    """Returns how a user has set a field: as one of the `flags`, or as an environment variable."""
    return flag(name) if name in flags else f"SERVING_{name.upper()}"


def flag(name: str) -> str:
    """Returns a field's option on the command line."""
    return f"--{name.replace('_', '-')}"


def variable_of_model(field: str, name: str) -> str:
    """Returns the environment variable that sets a field for the model of that name."""
    return f"SERVING_{field.upper()}__{re.sub(r'[^A-Z0-9]', '_', name.upper())}"


def unknown_variables(models: Iterable[str]) -> dict[str, str | None]:
    """Returns the SERVING_ variables that nothing reads; for each, the known name that is nearest.

    `models` has the models' names.
    """
    fields = {f"SERVING_{field.upper()}" for field in Settings.model_fields}
    of_models = {variable_of_model(field, model) for model in models for field in OF_A_MODEL}
    return {
        name: next(iter(get_close_matches(name.upper(), fields | of_models, 1, 0.75)), None)
        for name, value in os.environ.items()
        if name.upper().startswith("SERVING_") and not NOT_OURS.fullmatch(f"{name}={value}")
        if name.upper() not in fields and name not in of_models
    }
