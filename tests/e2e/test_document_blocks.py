"""Every block of shell and Python in README.md, CONTRIBUTING.md and docs/ does what the page says.

Each page has a folder like the repository's, with made-up models and inputs. The services that it starts
are its own; pages that start none share those of the made-up models. All are on free ports. A block runs
as it is printed, except for the ports; what it prints must be what the page promises, except for times
and the last digits. `tests/blocks.py` says which blocks are left out.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import requests

from tests import exports, servers
from tests.blocks import DATA, PAGES, PYTHON, SHELL, Block, blocks

pytestmark = [pytest.mark.slow, pytest.mark.torch]

SERVES = re.compile(r"(?:^|[\s/])(?:make run|smallplates serve|python -m smallplates.service)\b")
NAMES = ("input_ids", "attention_mask", "token_type_ids")
PROGRAMS = {
    "python": 'exec "{python}" "$@"',
    "smallplates": 'exec "{python}" -m smallplates "$@"',
    "make": 'exec /usr/bin/make --file "{makefile}" --old-file .venv/fastapi_onnx.installed "$@"',
}
"""Nothing is installed by `make run`, as if the packages were there."""

CHANGING = r"dur=[\d.]+|[\d.]+ ms\b|[\d.]+ ?%|python [\d.]+\b|\b[0-9a-f]{32}\b"
"""Times, versions and ids, and percentages, which differ between precisions."""


SHARED = re.compile(r"(exports/\w+|models/food11)?")
"""Models that are the same for every page."""

Ports = dict[str, str]


class Page:
    """A folder in which the blocks of a page run, and the service that they ask."""

    def __init__(self, folder: Path, shared: Callable[[str], Ports] | None = None) -> None:
        """`shared` returns the ports of a service that other pages ask, too."""
        self.folder = folder
        self._shared = shared
        self._service: subprocess.Popen[str] | None = None
        self._served: str | None = None
        self._ports: Ports = {}
        self._env = {
            **os.environ,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(servers.ROOT),
            "SERVING_ADMIN_KEY": "a-key-of-the-tests",
            "SERVING_CPU_RUNTIME": "onnxruntime",
            "SERVING_INSTANCES": "1",
            "SERVING_LOG_LEVEL": "error",
            "SERVING_PRECISION": "fp32",
        }

    def run(self, block: Block) -> None:
        if block.language in DATA:
            self._keep_model_json(block)
        elif not block.note:
            if not SERVES.search(block.text) and re.search(r"127\.0\.0\.1|smallplates ask", block.text):
                self._serve_models(block)
            if block.language == PYTHON:
                self._python(block)
            else:
                assert block.language in SHELL, block.place
                self._shell(block)

    def _python(self, block: Block) -> None:
        """Runs a program, or writes the module and imports it."""
        if block.file:
            (self.folder / block.file).write_text(self._with_ports(block.text))
            self._printed(block, [sys.executable, "-c", f"import {Path(block.file).stem}"])
            return
        printed = self._printed(block, [sys.executable, "-c", self._with_ports(block.text)])
        for promised in re.findall(r"^ *print\(.*\)  # (.*)$", block.text, re.MULTILINE):
            assert comparable(promised) in comparable(printed), block.place

    def _shell(self, block: Block) -> None:
        for command, promised in commands(block.text):
            if SERVES.search(command):
                self._start(command, {})
                continue
            printed = self._printed(block, ["bash", "-eo", "pipefail", "-c", self._with_ports(command)])
            if promised:
                assert comparable(printed) == comparable(promised), block.place
            else:
                assert not re.search(r'"(code|error)":', printed), f"{block.place}: {printed}"

    def _printed(self, block: Block, arguments: list[str]) -> str:
        """Returns what a program writes to standard output; it must end well."""
        done = servers.run(*arguments, cwd=self.folder, env={**self._env, **self._ports})
        assert done.returncode == 0, f"{block.place}: {done.stdout}{done.stderr}"
        return done.stdout

    def _with_ports(self, text: str) -> str:
        """The text, with the ports of the service in place of the usual ones."""
        for usual, name in (("8000", "SERVING_PORT"), ("9000", "SERVING_TCP_PORT")):
            text = text.replace(f"127.0.0.1:{usual}", f"127.0.0.1:{self._ports.get(name, usual)}")
        return text

    def _keep_model_json(self, block: Block) -> None:
        """Writes a complete model.json of the page into the folder of its model."""
        if block.language == "json" and block.text.startswith('{"name"'):
            folder = self.folder / "models" / json.loads(block.text)["name"]
            folder.mkdir(exist_ok=True)
            (folder / "model.json").write_text(block.text)

    def _serve_models(self, block: Block) -> None:
        """Makes sure that a service runs: the page's last one, or one of the block's model."""
        if self._ports and block.served in ("", self._served):
            return
        if self._shared and SHARED.fullmatch(block.served) and "/repository/" not in block.text:
            self.stop()
            self._ports = self._shared(block.served)
        else:
            self.serve(block.served)
        self._served = block.served

    def serve(self, model: str) -> Ports:
        """Starts a service of a model of this folder, or of three; returns its ports."""
        models = model or "models/food11,exports/sentiment,exports/questions"
        self._start("python -m smallplates.service fastapi_onnx", {"SERVING_MODELS": models})
        return self._ports

    def _start(self, command: str, more: dict[str, str]) -> None:
        """Starts a service in place of the one before; returns when it is ready."""
        self.stop()
        names = ("SERVING_PORT", "SERVING_TCP_PORT", "UI_PORT")
        self._ports = {name: str(servers.free_port()) for name in names}
        self._service = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self.folder,
            env={**self._env, **self._ports, **more},
            start_new_session=True,
            text=True,
        )
        url = self._ports["SERVING_URL"] = f"http://127.0.0.1:{self._ports['SERVING_PORT']}"
        servers.wait_until_answers(f"{url}/health/ready", self._service)
        servers.wait_for(lambda: all_are_ready(url))

    def stop(self) -> None:
        if self._service is not None and self._service.poll() is None:
            os.killpg(self._service.pid, signal.SIGTERM)
            try:
                self._service.wait(60)
            finally:
                if self._service.poll() is None:
                    os.killpg(self._service.pid, signal.SIGKILL)
        self._service = self._served = None
        self._ports = {}


def all_are_ready(url: str) -> bool:
    """Whether the service has loaded its other models, too."""
    states = requests.get(f"{url}/health/ready", timeout=60).json()["models"].values()
    return set(states) == {"ready"}


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yields the commands of a block, and what each is promised to print; "" where nothing is.

    Lines without prompts are one command, but for those that start a service.
    """
    has_prompts = text.startswith("$ ")
    command, promised = "", ""
    for line in text.splitlines():
        if command.endswith(("\\", "|")) and not promised:
            command += f"\n{line}"
        elif has_prompts and not line.startswith("$ "):
            promised += f"{line}\n"
        elif command and not (has_prompts or SERVES.search(command) or SERVES.search(line)):
            command += f"\n{line}"
        else:
            if command:
                yield command, promised
            command, promised = line.removeprefix("$ "), ""
    yield command, promised


def comparable(printed: str) -> str:
    """What is printed, without times and ids, and with two digits behind the point."""
    steady = re.sub(CHANGING, "...", printed.strip())
    return re.sub(r"\d+\.\d+", lambda match: f"{float(match[0]):.2f}", steady)


@contextmanager
def page_in(folder: Path, shared: Callable[[str], Ports] | None = None) -> Iterator[Page]:
    """A page's folder with everything that the documents name."""
    for name in ("bin", "exports", "path/to", "models/food11/2"):
        (folder / name).mkdir(parents=True)
    programs = {"python": sys.executable, "makefile": servers.ROOT / "Makefile"}
    for name, script in PROGRAMS.items():
        program = folder / "bin" / name
        program.write_text(f"#!/bin/bash\n{script.format(**programs)}\n")
        program.chmod(0o755)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(folder / "bin")
    for name in ("README.md", "flask_app", "notebooks"):
        (folder / name).symlink_to(servers.ROOT / name)
    (folder / "models" / "sentiment").symlink_to(servers.ROOT / "models" / "sentiment")
    food = servers.ROOT / "models" / "food11"
    (folder / "models" / "food11" / "1").symlink_to(food / "1")
    for file in (food / "1").iterdir():
        (folder / "models" / "food11" / "2" / file.name).symlink_to(file)
    described = (food / "model.json").read_text()
    (folder / "models" / "food11" / "model.json").write_text(described)
    second = described.replace('"1/', '"2/').replace('"version": "1"', '"version": "2"')
    (folder / "models" / "food11" / "2" / "model.json").write_text(second)
    kinds = ("sentiment", "questions", "embeddings", "reranker", "tagger", "implied")
    exports.each(folder / "exports", *kinds, names=NAMES)
    for name in ("export", "folder"):
        (folder / "path" / "to" / name).symlink_to(folder / "exports" / "sentiment")
    (folder / "models" / "distance" / "1").mkdir(parents=True)
    np.save(folder / "models" / "distance" / "1" / "points.npy", [[0.0, 0.0], [1.44, 1.92]])
    shutil.copy(servers.ROOT / "flask_app/static/samples/soup.jpg", folder / "photo.jpg")
    (folder / "paragraph.txt").write_text("the soup was wonderful and warm")
    (folder / "dev.tsv").write_text("sentence\tlabel\n" + "the soup was wonderful and warm\t2\n" * 20)
    page = Page(folder, shared)
    try:
        yield page
    finally:
        page.stop()


def has_code(path: Path) -> bool:
    """Whether any block of a page runs."""
    return any(block.language not in DATA and not block.note for block in blocks(path))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ports]]:
    """Returns the ports of a model's service, which runs until the last page has asked it."""
    with ExitStack() as stack:

        @cache
        def ports(model: str) -> Ports:
            return stack.enter_context(page_in(tmp_path_factory.mktemp("shared"))).serve(model)

        yield ports


@pytest.mark.parametrize("path", [*filter(has_code, PAGES)], ids=lambda path: path.name)
def test_the_blocks_of_a_page_run(path: Path, tmp_path: Path, shared: Callable[[str], Ports]) -> None:
    with page_in(tmp_path, shared) as page:
        for block in blocks(path):
            page.run(block)
