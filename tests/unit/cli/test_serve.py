"""What `smallplates serve` makes of its options, the environment and model.json."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flask_app.settings import Settings as PageSettings
from smallplates.cli import hub, processes, serve
from smallplates.cli.commands import app
from smallplates.models.folder import Model
from smallplates.protocols import PROTOCOLS
from smallplates.settings import FOOD11, Settings


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Takes back what the command writes into the environment, and makes it use free ports."""
    before = dict(os.environ)
    os.environ |= {"SERVING_PORT": "0", "UI_PORT": "0"}
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What would have been started."""
    kept: dict[str, object] = {}

    def run(service: list[str], settings: Settings, page: PageSettings | None, models: list[str]) -> int:
        kept.update(service=service, settings=settings, page=page, models=models)
        return 0

    monkeypatch.setattr(processes, "run", run)
    return kept


def call(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    return result.exit_code, result.output


def model_folder(path: Path, name: str, **settings: object) -> Path:
    """A folder with a description, and no weights."""
    path.mkdir()
    described = {"name": name, "version": "1", "files": {}, "task": "tensor", **settings}
    (path / "model.json").write_text(json.dumps(described))
    return path


@pytest.mark.parametrize("place", ["https://huggingface.co/org/name", "iris:Iris", "a=iris:Iris"])
def test_what_is_no_place_of_a_model_is_one_sentence(place: str) -> None:
    refused(place, words=["org/name", "model.json"])


def test_a_home_folder_after_a_name(
    started: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(model_folder(tmp_path / "one", "one").parent))
    assert call("a=~/one", "--no-page") == (0, "")
    assert started["models"] == ["a"]


def test_without_a_folder_the_shipped_model_is_served(started: dict[str, object]) -> None:
    assert call("--port=0", "--ui-port=0") == (0, "")
    assert started["service"] == ["smallplates.service", "fastapi_onnx"]
    assert started["models"] == ["food11"]
    assert Settings().model_dir == FOOD11
    page = started["page"]
    assert isinstance(page, PageSettings)
    assert page.port > 0
    assert PageSettings().api_url == f"http://127.0.0.1:{Settings().port}"


def test_several_models_and_their_names(started: dict[str, object], tmp_path: Path) -> None:
    first, second = model_folder(tmp_path / "a", "one"), model_folder(tmp_path / "b", "two")
    assert call(first, f"other={second}", "--no-page") == (0, "")
    assert started["models"] == ["one", "other"]
    assert started["page"] is None
    assert call(second, "--served-model-name", "third") == (0, "")
    assert started["models"] == ["third"]
    refused(first, second, "--served-model-name=third", words=["exactly one model, not 2"])


def refused(*arguments: str | Path, words: list[str]) -> str:
    """Checks that `smallplates serve` says so in one sentence, and returns that."""
    code, said = call(*arguments)
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith("smallplates serve: ")
    assert all(word in said for word in words), said
    return said


def test_a_folder_may_have_any_name(started: dict[str, object], tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "a=b,c", "odd")
    assert call(folder) == (0, "")
    assert started["models"] == ["odd"]
    other = model_folder(tmp_path / "d", "even")
    refused(folder, other, words=["contains a comma", "serve this model alone"])
    assert "alone" not in refused(f"mood={folder}", words=["rename it"])
    unnamed = tmp_path / "caf\xe9 v2"  # no name of a model
    unnamed.mkdir()
    (unnamed / "model.onnx").touch()
    for arguments in ([f"mood={unnamed}"], [unnamed, "--served-model-name=mood"]):
        assert call(*arguments) == (0, "")
        assert started["models"] == ["mood"]
    refused(unnamed, words=["rename it", "NAME=FOLDER"])


def test_an_id_of_the_hub_is_served_by_its_name(
    started: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fetched = model_folder(tmp_path / "c0ffee", "any"), []

    def fetch(*arguments: object) -> Path:
        fetched.append(arguments)
        return folder

    monkeypatch.setattr(hub, "fetch", fetch)
    assert call("org/mood") == (0, "")
    assert started["models"] == ["mood"]
    assert call("a=org/mood", "org/other") == (0, "")
    assert started["models"] == ["a", "other"]
    assert call("org/mood", "--served-model-name=b") == (0, "")
    assert started["models"] == ["b"]
    assert call("org/mood", "--revision=v2", "--precision=int8") == (0, "")
    assert fetched[0] == ("org/mood", None, ["onnx"])
    assert fetched[-1] == ("org/mood", "v2", ["onnx", "int8"])
    refused(folder, "--revision=v2", words=["--revision needs a model id"])


@pytest.mark.usefixtures("started")
def test_an_option_beats_the_environment_which_beats_model_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder(tmp_path / "a", "my-model", instances=3, precision="fp32")
    monkeypatch.setenv("SERVING_QUEUE_SIZE", "7")
    monkeypatch.setenv("SERVING_INSTANCES__MY_MODEL", "2")

    def of_model() -> Settings:
        return Model.read(folder).settings(Settings())

    assert call(folder) == (0, "")
    assert (of_model().queue_size, of_model().instances, of_model().precision) == (7, 2, "fp32")
    assert call(folder, "--queue-size=9", "--instances=1", "--precision=int8") == (0, "")
    assert (of_model().queue_size, of_model().instances, of_model().precision) == (9, 1, "int8")


def test_keys_and_passwords_come_from_files(started: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    options = {
        "--api-key-file": "--api-key-file cannot be read",
        "--ui-password-file": "UI_PASSWORD_FILE: ",
    }
    assert call(*(f"{name}={tmp_path / 'key'}" for name in options)) == (0, "")
    assert os.environ["SERVING_API_KEY"] == os.environ["UI_API_KEY"] == "secret"
    assert isinstance(started["page"], PageSettings)
    assert started["page"].password_file == PageSettings().password_file == tmp_path / "key"
    for name, words in options.items():
        refused(name, tmp_path / "none", words=[words])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port=70000"], "smallplates serve: --port: Input should be less than or equal to 65535\n"),
        (["--port=0", "--ui-port=many"], "UI_PORT: Input should be a valid integer"),
        (["nowhere"], "no model in nowhere: there is no such folder"),
        (["--host=192.0.2.1", "--port=0"], "cannot listen on SERVING_HOST=192.0.2.1 SERVING_PORT=0: "),
        (["--port=0", "--ui-host=a..b"], "cannot listen on UI_HOST=a..b UI_PORT=0: "),
        (["--host", "\xe9" * 70, "--port=0"], "cannot listen on SERVING_HOST=\xe9"),
        ([], "smallplates serve: SERVING_QUEUE_SIZE: Input should be"),
    ],
)
def test_a_mistake_is_one_sentence(
    started: dict[str, object], monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    if not arguments:
        monkeypatch.setenv("SERVING_QUEUE_SIZE", "0")
    refused(*arguments, words=[words])
    assert not started


@pytest.mark.parametrize("prefix", ["SERVING", "UI"])
def test_the_port_of_another_program_is_refused(started: dict[str, object], prefix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        os.environ[f"{prefix}_PORT"] = port
        place = f"{prefix}_HOST=127.0.0.1 {prefix}_PORT={port}"
        refused(words=[f"cannot listen on {place}: Address already in use"])
    assert not started


def test_every_setting_has_an_option() -> None:
    help_all = call("--help-all")[1]
    places = {"model_dir", "models"}
    for settings, prefix in ((Settings, ""), (PageSettings, "ui-")):
        for field in settings.model_fields.keys() - places - {"api_url"}:
            assert f"--{prefix}{field.replace('_', '-')}" in help_all
    assert "--queue-size N" in help_all
    assert "--device auto|cpu|cuda" in help_all
    assert f"--protocols {'|'.join(PROTOCOLS)},..." in help_all


def test_help_is_short() -> None:
    said = call("--help")[1]
    assert 10 <= said.count("\n  --") <= 16
    assert "--queue-size" not in said
    assert "default 8000" in said


def test_addresses_and_ports_for_other_programs() -> None:
    hosts = ("0.0.0.0", "::", "::1", "a.b")  # noqa: S104
    assert [processes.reachable(host) for host in hosts] == [*("127.0.0.1", "[::1]", "[::1]", "a.b")]
    first, second = (serve.usable_port("UI", "127.0.0.1", 0) for _ in range(2))
    assert first != second > 0
