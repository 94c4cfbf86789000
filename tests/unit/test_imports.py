"""What imports what: the folders, the package alone, its client, a worker."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import smallplates
from smallplates.client import AsyncClient, Client
from smallplates.settings import PACKAGE
from smallplates.tasks.python.task import PythonTask

ORDER = [
    {"", "system"},
    {"models"},
    {"engine"},
    {"worker"},
    {"tasks"},
    {"supervision"},
    {"web"},
    {"cli", "export", "ray"},
]
"""Folders, the lowest first: a file imports nothing of a higher one. `""` is for files outside
folders.
"""

OPENS_PORTS = {"web.server", "web.sockets"}
"""What `supervision/cluster.py` imports of the web processes that it starts."""


def imported(path: Path) -> set[str]:
    """The modules of this package that a file imports, `smallplates.` left out."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return {name.partition(".")[2] for name in found if name.startswith("smallplates.")}


@pytest.mark.parametrize("height", range(1, len(ORDER)))
def test_imports_go_downwards_only(height: int) -> None:
    lower = set().union(*ORDER[:height])
    higher = set().union(*ORDER[height:])
    wrong = {
        f"{path.relative_to(PACKAGE)} imports {name}"
        for folder in lower - {""}
        for path in (PACKAGE / folder).rglob("*.py")
        for name in imported(path)
        if name.partition(".")[0] in higher
        and (path != PACKAGE / "supervision/cluster.py" or not name.startswith(tuple(OPENS_PORTS)))
    }
    assert wrong == set()


def loaded(statement: str) -> set[str]:
    program = f"import sys, json; {statement}; print(json.dumps(list(sys.modules)))"
    command = [sys.executable, "-c", program]
    return set(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))


def ours(modules: set[str]) -> set[str]:
    """Those of this package, without its name."""
    return {name.partition(".")[2] for name in modules if name.partition(".")[0] == "smallplates"}


def test_the_package_alone_loads_nothing() -> None:
    modules = loaded("import smallplates")
    assert ours(modules) == {""}
    assert not modules & {"fastapi", "httpx", "numpy", "onnxruntime", "pydantic"}


def test_its_classes_are_loaded_when_they_are_used() -> None:
    assert smallplates.PythonTask is PythonTask
    assert (smallplates.Client, smallplates.AsyncClient) == (Client, AsyncClient)
    with pytest.raises(ImportError, match="Server"):
        exec("from smallplates import Server")  # noqa: S102


@pytest.mark.parametrize(
    "statement", ["import smallplates.client", "from smallplates import AsyncClient, Client"]
)
def test_the_client_loads_nothing_of_the_service(statement: str) -> None:
    modules = loaded(statement)
    assert {name.partition(".")[0] for name in ours(modules)} == {"", "client"}
    assert not modules & {"fastapi", "numpy", "onnxruntime", "pydantic"}


def test_a_python_task_loads_little() -> None:
    modules = loaded("from smallplates import PythonTask")
    assert ours(modules) == {"", "tasks", "tasks.python", "tasks.python.task"}


def test_a_worker_loads_nothing_of_other_processes() -> None:
    modules = loaded("import smallplates.worker.process")
    others = {"cli", "client", "export", "ray", "supervision", "tasks", "web"}
    assert not {name.partition(".")[0] for name in ours(modules)} & others
    assert "fastapi" not in modules
