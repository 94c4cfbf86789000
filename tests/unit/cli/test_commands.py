"""The group of commands, and what is said where an extra is missing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smallplates import __version__, extras
from smallplates.cli import serve
from smallplates.cli.commands import COMMANDS, Command, app
from smallplates.settings import ROOT
from tests.browser.stub_api import StubApi, error


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_listed(name: str) -> None:
    assert f"\n  {name} " in CliRunner().invoke(app, ["--help"]).output


def test_the_version_is_shown() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"smallplates {__version__}\n"


def test_ask_takes_any_number_of_inputs() -> None:
    assert (
        CliRunner()
        .invoke(app, ["ask", "--help"])
        .output.startswith("Usage: smallplates ask [OPTIONS] [INPUT]...\n")
    )


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
    result = CliRunner().invoke(app, ["ask", "--url", stub.url, "--text", "warm soup", *options])
    assert result.exit_code == 1
    assert f"({status} refused" in result.output
    assert re.findall("--[a-z-]+", result.output) == [cure] * bool(cure)


def test_quantize_has_two_spellings() -> None:
    told = [CliRunner().invoke(app, [name, "--help"]).output for name in ("quantize", "quantise")]
    assert told[0].partition("\n")[2] == told[1].partition("\n")[2] != ""
    assert "quantise" not in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize(
    ("module", "extra"),
    [("torch.nn", "pt"), ("hdrh", "bench"), ("ray", "ray"), ("smallplates", None), ("", None)],
)
def test_a_package_is_brought_by_an_extra(module: str, extra: str | None) -> None:
    words = extras.missing_extra(module)
    assert words == (f"this needs the extra {extra}: {extras.install(extra)}" if extra else None)


def test_a_backend_without_its_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["serve", "--backend=pt"])
    assert result.exit_code == 1
    assert result.output == f"smallplates serve: this needs the extra pt: {extras.install('pt')}\n"


def test_a_file_that_cannot_be_used_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Command, "load", lambda _: lambda **_: tmp_path.read_text())
    result = CliRunner().invoke(app, ["load"])
    assert (result.exit_code, result.output) == (1, f"smallplates load: {tmp_path}: Is a directory\n")


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
    assert CliRunner().invoke(app, ["check", "--help"]).exit_code == 0
