"""schemathesis takes /openapi.json at its word: every documented operation, all checks."""

import subprocess
import sys

import pytest

from tests import servers

pytestmark = pytest.mark.slow


def test_schemathesis_finds_no_failure(onnx_url: str) -> None:
    result = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{onnx_url}/openapi.json"),
            *("--max-examples", "30", "--seed", "1", "--no-color"),
        ],
        cwd=servers.ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
