"""schemathesis takes /openapi.json at its word: every documented operation, all checks."""

import sys

import pytest

from tests import servers

pytestmark = pytest.mark.slow


def test_schemathesis_finds_no_failure(onnx_url: str) -> None:
    program = (sys.executable, "-m", "schemathesis.cli", "run", f"{onnx_url}/openapi.json")
    options = ("--max-examples", "30", "--seed", "1", "--no-color")
    result = servers.run(*program, *options, seconds=280)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
