"""`python -m benchmarks` where a package is missing."""

import subprocess
import sys

from smallplates.settings import ROOT

WITHOUT = """
import runpy, sys
sys.modules["psutil"] = None
sys.argv = ["benchmarks", "compare", "--help"]
runpy.run_module("benchmarks", run_name="__main__")
"""


def test_a_missing_package_is_named_in_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == ("benchmarks: psutil is not installed; run: make .venv/dev-all.installed\n")
