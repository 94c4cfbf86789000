"""The group of commands, and what is said where an extra is missing."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from smallplates import __version__, extras
from smallplates.cli import serve
from smallplates.cli.commands import COMMANDS, Command, app
from smallplates.settings import FOOD11, ROOT
from tests.browser.stub_api import Reply, StubApi, error
from tests.command_line import run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_listed(name: str) -> None:
    assert f"\n  {name} " in run(app, "--help")


def test_the_version_is_shown() -> None:
    assert run(app, "--version") == f"smallplates {__version__}\n"


@pytest.mark.parametrize("command", [[], ["serve"], ["export"], ["export", "onnx"], ["quantize"]])
def test_help_has_a_short_option(command: list[str]) -> None:
    assert run(app, *command, "-h") == run(app, *command, "--help")


@pytest.mark.parametrize("command", [[], ["export"]])
@pytest.mark.parametrize("model", ["org/name", str(FOOD11), str(FOOD11 / "1/model.onnx")])
def test_a_model_in_place_of_a_command_is_one_sentence(command: list[str], model: str) -> None:
    advised = f"serve {model}" if not command else "type torchvision"
    assert advised in run(app, *command, model, code=2)


@pytest.mark.parametrize("model", [FOOD11, FOOD11 / "1/model.onnx"])
def test_a_model_without_a_class_is_not_checked(model: Path) -> None:
    assert f"smallplates serve {model}" in run(app, "check", model, code=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--text=a", "--url=http://127.0.0.1:99999"], "Port out of range"),
        (["--question=a", f"--context-file={FOOD11 / '1/model.onnx'}"], "--context-file"),
    ],
)
def test_ask_refuses_what_it_cannot_send(options: list[str], words: str) -> None:
    assert words in run(app, "ask", *options, code=2)


def test_quantize_says_that_it_made_no_file() -> None:
    said = run(app, "quantize", "nowhere", "--calibrate=nowhere", code=1)
    assert said.startswith("no int8 file was made")


def test_ask_takes_any_number_of_inputs() -> None:
    assert run(app, "ask", "--help").startswith("Usage: smallplates ask [OPTIONS] [INPUT]...\n")


@pytest.mark.parametrize(
    ("status", "options", "cure"),
    [
        (401, [], "--api-key"),
        (422, [], "--model"),
        (422, ["--model", "food11"], ""),
        (500, ["--model", "food11"], ""),
    ],
)
def test_ask_names_the_option_that_may_be_missing(
    stub: StubApi, status: int, options: list[str], cure: str
) -> None:
    stub.usual = error(status, "refused")
    said = run(app, "ask", "--url", stub.url, "--text", "warm soup", *options, code=1)
    assert f"({status} refused" in said
    assert re.findall("--[a-z-]+", said) == [cure] * bool(cure)


SOUP = str(ROOT / "flask_app/static/samples/soup.jpg")


@pytest.mark.parametrize(
    "body", [{"calories": 210}, {"embedding": [0.5, 0.25]}, ["warm"], {"prediction": 7}]
)
def test_ask_prints_whatever_a_model_answers_to_a_photo(stub: StubApi, body: object) -> None:
    stub.usual = Reply(200, body)
    said = run(app, "ask", "--url", stub.url, SOUP, SOUP, "nowhere.jpg", SOUP, code=1)
    assert len(lines := said.splitlines()) == 4
    shown = "0.5000, 0.2500" if "embedding" in body else json.dumps(body)  # type: ignore[operator]
    assert [shown in line for line in lines].count(True) == 3
    assert len(stub.asked) == 3


@pytest.mark.parametrize(
    ("status", "code"), [(400, "invalid_text"), (415, "unsupported_media_type"), (501, "not_supported")]
)
def test_ask_names_the_option_if_the_default_model_takes_no_photo(
    stub: StubApi, status: int, code: str
) -> None:
    stub.usual = error(status, code)
    assert "--model" in run(app, "ask", "--url", stub.url, SOUP, code=1)
    stub.usual = error(400, "invalid_image")
    assert "--model" not in run(app, "ask", "--url", stub.url, SOUP, code=1)


def test_quantize_has_two_spellings() -> None:
    told = [run(app, name, "--help") for name in ("quantize", "quantise")]
    assert told[0].partition("\n")[2] == told[1].partition("\n")[2] != ""
    assert "quantise" not in run(app, "--help")


@pytest.mark.parametrize(
    ("module", "extra"),
    [("torch.nn", "pt"), ("hdrh", "bench"), ("ray", "ray"), ("smallplates", None), ("", None)],
)
def test_a_package_is_brought_by_an_extra(module: str, extra: str | None) -> None:
    words = extras.missing_extra(module)
    assert words == (f"this needs the extra {extra}: {extras.install(extra)}" if extra else None)


def test_a_backend_without_its_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda _: None)
    said = run(app, "serve", "--backend=pt", code=1)
    assert said == f"smallplates serve: this needs the extra pt: {extras.install('pt')}\n"


def test_a_file_that_cannot_be_used_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Command, "load", lambda _: lambda **_: tmp_path.read_text())
    assert run(app, "load", code=1) == f"smallplates load: {tmp_path}: Is a directory\n"


@pytest.mark.parametrize(
    ("arguments", "name"), [(["--help"], "smallplates"), (["check", "--help"], "check")]
)
def test_a_standard_output_that_is_full_is_one_sentence(arguments: list[str], name: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "smallplates", *arguments],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.endswith(f"{name}: No space left on device\n")
    assert done.stderr.count("\n") == 1


def test_a_current_folder_that_has_been_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    run(app, "check", "--help")
