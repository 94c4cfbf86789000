"""Options of `smallplates serve` that are made from the declarations of the settings."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import FilePath, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from smallplates.settings import flag

COMMON = {
    *("host", "port", "ui_port", "device", "precision", "instances", "max_batch_size", "log_level"),
    "api_key_file",
}
"""Options that `--help` shows; `--help-all` shows all."""

FILE = "_file"
"""Ends an option whose value, a key, is read from a file: other users see command lines."""


def parameters(settings: type[BaseSettings], left_out: set[str]) -> Iterator[inspect.Parameter]:
    """Yields a parameter for Typer for each field; its value is text, or None where it is not given."""
    environment = str(settings.model_config["env_prefix"])
    prefix = "" if environment == "SERVING_" else environment.lower()
    for field, info in settings.model_fields.items():
        if field not in left_out:
            yield parameter(prefix + field, info, f"{environment}{field.upper()}")


def parameter(name: str, info: FieldInfo, variable: str) -> inspect.Parameter:
    """Returns the parameter of one field."""
    is_secret = SecretStr in (info.annotation, *get_args(info.annotation))
    kind: Any = Path if is_secret else str
    if is_secret:
        name += FILE
    meaning = " ".join((info.description or "").replace("`", "").split())
    default = "" if is_secret else default_in_words(info)
    option = typer.Option(
        flag(name),
        metavar="FILE" if is_secret else metavar(info.annotation),
        help=f"{'File with this key. ' if is_secret else ''}{meaning} [{variable}{default}]",
        hidden=name not in COMMON,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def metavar(annotation: Any) -> str:  # Any: whatever a field declares
    """Returns what a value looks like: `auto|cpu|cuda`, `N|auto`, `FOLDER`."""
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    if get_origin(annotation) is list:
        return f"{metavar(get_args(annotation)[0])},..."
    if annotation is bool:
        return "true|false"
    if annotation in (int, float):
        return "N"
    if annotation == FilePath:
        return "FILE"
    if annotation is Path:
        return "FOLDER"
    parts = [metavar(part) for part in get_args(annotation) if part is not type(None)]
    parts = [part for part in parts if part != "TEXT"] if len(parts) > 1 else parts
    return "|".join(dict.fromkeys(parts)) or "TEXT"


def default_in_words(info: FieldInfo) -> str:
    """Returns a field's default as it would be typed; nothing where there is none."""
    default = info.default
    if default in (None, []):
        return ""
    if isinstance(default, list):
        return f", default {','.join(default)}"
    return f", default {str(default).lower() if isinstance(default, bool) else default}"
