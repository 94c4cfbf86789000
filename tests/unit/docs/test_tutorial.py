"""The Python class in docs/tutorial.md does what the tutorial promises."""

import re
import sys
from pathlib import Path

import pytest

from smallplates.cli import task_check as check
from smallplates.settings import ROOT

DOCUMENT = (ROOT / "docs" / "tutorial.md").read_text()


def block(before: str) -> str:
    """The block of Python that follows this sentence."""
    return DOCUMENT.partition(before)[2].partition("```python\n")[2].partition("```")[0]


def test_a_class_of_your_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fruit", raising=False)
    Path("fruit.py").write_text(block("Save it as `fruit.py`:"))
    exec(compile(block("writes the model's folder:"), "train_fruit.py", "exec"), {})  # noqa: S102 it is ours
    command = re.search(r"smallplates check (\S+) --model-dir (\S+) --request '(.*)'$", DOCUMENT, re.M)
    assert command
    assert check.run(command[1], Path(command[2]), command[3]) == 0
    printed = re.findall(r"{.*}", capsys.readouterr().out)
    assert printed == re.findall(r"{.*}", DOCUMENT[command.end() :].partition("```")[0])
