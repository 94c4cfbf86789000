"""`smallplates serve`: reads options and models, then runs the API and the page beside each other."""

import inspect
import os
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError

from flask_app.settings import Settings as PageSettings
from smallplates.cli import hub, processes
from smallplates.cli.options import FILE, parameters
from smallplates.errors import ConfigurationError, in_words
from smallplates.models.folder import configured_models
from smallplates.settings import OF_A_MODEL, Settings, flag, variable_of_model

PACKAGES = {"onnx": "fastapi_onnx", "pt": "fastapi_pt"}


def show_all(context: typer.Context, wanted: bool) -> None:
    """Prints the help with every option, and ends."""
    if wanted:
        for parameter in context.command.params:
            setattr(parameter, "hidden", False)  # noqa: B010 options of Typer have it
        typer.echo(context.get_help())
        raise typer.Exit


def serve(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]FOLDER",
            help="Model folders, .onnx files, or model ids of the Hugging Face Hub (org/name). By "
            "default, a model that classifies food.",
            show_default=False,
        ),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="onnx, pt (PyTorch), or the name of a package.", metavar="onnx|pt")
    ] = "onnx",
    served_model_name: Annotated[
        str | None,
        typer.Option(help="Serve the model under this name (single model only).", metavar="NAME"),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a model on the Hugging Face Hub.")
    ] = None,
    no_page: Annotated[bool, typer.Option("--no-page", help="Serve only the API.")] = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="Serve three replicas on a local Ray cluster.", hidden=True)
    ] = False,
    help_all: Annotated[  # noqa: ARG001 its callback does all
        bool, typer.Option("--help-all", callback=show_all, is_eager=True, help="Show every option.")
    ] = False,
    **values: str | Path | None,
) -> None:
    """Serves models with an API and a web page, until Ctrl-C.

    An option overrides its environment variable, which is shown in brackets.
    """
    for package, is_wanted in (("torch", backend == "pt"), ("ray", ray)):
        if is_wanted and find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
    given = {
        name.removesuffix(FILE) if isinstance(v, Path) else name: text_of(name, v)
        for name, v in values.items()
        if v is not None
    }
    kinds = weights_of(backend, given.get("precision", os.environ.get("SERVING_PRECISION")))
    folders = [local_place(place, revision, kinds) for place in places or ()]
    if revision and folders == (places or []):
        raise ConfigurationError("--revision needs a model id of the Hugging Face Hub")
    settings, models = configure(given, folders, served_model_name)
    page = None if no_page else configure_page(settings)
    service = "smallplates.ray" if ray else "smallplates.service"
    raise typer.Exit(processes.run([service, PACKAGES.get(backend, backend)], settings, page, models))


def weights_of(backend: str, precision: str | None) -> list[str]:
    """Returns which of a repository's weights are served, as keys of `hub.WEIGHTS`."""
    if backend == "pt":
        return ["pt"]
    return ["onnx", "int8"] if precision == "int8" else ["onnx"]


def local_place(place: str, revision: str | None, kinds: list[str]) -> str:
    """Returns `[NAME=]FOLDER`, where an id of the hub becomes the folder of its files.

    Its name is that of the repository, unless one is given. Raises ConfigurationError.
    """
    name, equals, source = place.partition("=")
    if not equals or Path(place).exists():
        name, source = "", place
    if ":" in source and not Path(source).exists():
        raise ConfigurationError(
            f"{source} is not a folder, an .onnx file or a model id (org/name) of the Hugging Face Hub; "
            "the model.json of a folder names a Python class"
        )
    if not hub.is_id(source):
        return place.removesuffix(source) + os.path.expanduser(source)  # noqa: PTH111 shells leave `NAME=~`
    folder = hub.fetch(source, revision, kinds)
    return f"{name or source.partition('/')[2]}={folder}"


def configure(given: dict[str, str], places: list[str], name: str | None) -> tuple[Settings, list[str]]:
    """Puts options and models into the environment, which all processes read.

    `given` has the options by their names. Returns the settings, and the models' names. Raises
    ConfigurationError.
    """
    os.environ.setdefault("SERVING_LOG_FORMAT", "console")
    os.environ |= models_to_serve(places, name)
    os.environ |= {
        field.upper() if field.startswith("ui_") else f"SERVING_{field.upper()}": text
        for field, text in given.items()
    }
    settings = Settings.read(**{field: text for field, text in given.items() if field[:3] != "ui_"})
    settings.port = usable_port("SERVING", settings.host, settings.port)
    os.environ["SERVING_PORT"] = str(settings.port)
    models = list(configured_models(settings))
    for field in given.keys() & set(OF_A_MODEL):  # what model.json says is beaten, too
        os.environ |= {variable_of_model(field, model): given[field] for model in models}
    return settings, models


def models_to_serve(places: list[str], name: str | None) -> dict[str, str]:
    """Returns the variables that name the models. Raises ConfigurationError."""
    if name and len(places) != 1:
        raise ConfigurationError(f"--served-model-name needs exactly one model, not {len(places)}")
    if not places:
        return {}
    if name:
        folder = places[0] if Path(places[0]).exists() else places[0].rpartition("=")[2]
        places = [f"{name}={folder}"]
    elif len(places) == 1 and Path(places[0]).exists():  # with whatever characters
        return {"SERVING_MODEL_DIR": places[0], "SERVING_MODELS": ""}
    if wrong := [place for place in places if "," in place]:
        how = "rename it" if len(places) == 1 else "rename it, or serve this model alone, without NAME="
        raise ConfigurationError(f"{wrong[0]} contains a comma, which separates models: {how}")
    return {"SERVING_MODELS": ",".join(places)}


def configure_page(settings: Settings) -> PageSettings:
    """Tells the page where the API is, by the environment. Raises ConfigurationError."""
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    address = f"http://{processes.reachable(settings.host)}:{settings.port}"
    os.environ |= {"UI_API_URL": address, "UI_API_KEY": key} | os.environ
    try:
        page = PageSettings()
    except ValidationError as error:
        raise ConfigurationError(in_words(error, lambda name: f"UI_{name.upper()}")) from error
    except (SettingsError, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"UI_SECRETS_DIR cannot be read: {error}") from error
    page.port = usable_port("UI", page.host, page.port)
    os.environ["UI_PORT"] = str(page.port)
    return page


def usable_port(prefix: str, host: str, port: int) -> int:
    """Returns `port`, or a free one if it is 0. Raises ConfigurationError if another program has it.

    Without this, another service's answers would be taken for those of the one that cannot start.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, TypeError, ValueError) as error:
            place = f"{prefix}_HOST={host} {prefix}_PORT={port}"
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"cannot listen on {place}: {reason}") from error
        return int(listener.getsockname()[1])


def text_of(name: str, value: str | Path) -> str:
    """Returns an option's value; a key is what its file holds. Raises ConfigurationError."""
    if not isinstance(value, Path):
        return value
    try:
        return value.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{flag(name)} cannot be read: {error}") from error


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
signature = inspect.signature(serve)
serve.__signature__ = signature.replace(  # type: ignore[attr-defined]
    parameters=[
        *(p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD),
        *parameters(Settings, {"model_dir", "models"}),
        *parameters(PageSettings, {"api_url"}),
    ]
)
app.command()(serve)
