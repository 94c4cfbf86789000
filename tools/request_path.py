"""Traces one `POST /predict` through the modules of the web process: `python -m tools.request_path`.

A service of the shipped model answers a small JPEG in base64, while a profiler notes every module whose
functions run. `tools.tables` writes the table into docs/how-it-works.md.
"""

import ast
import asyncio
import base64
import os
import sys
from types import FrameType
from typing import TYPE_CHECKING

import requests

from smallplates.settings import ROOT, Settings
from smallplates.tasks.image_classification import EXAMPLE
from smallplates.web.server import Server

if TYPE_CHECKING:
    from fastapi import FastAPI

FOLDER = f"{ROOT}/smallplates/"
SETTINGS = {
    "SERVING_HOST": "127.0.0.1",
    "SERVING_PORT": "0",
    "SERVING_DEVICE": "cpu",
    "SERVING_INSTANCES": "1",
    "SERVING_WEB_PROCESSES": "1",
}


class TracedServer(Server):
    """Server that answers two requests, the second one under a profiler, and ends."""

    def __init__(self, app: "FastAPI", settings: Settings) -> None:
        super().__init__(app, settings)
        self.modules: dict[str, None] = {}
        """Modules whose functions ran, in the order of the first call."""

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(FOLDER):
            self.modules[name.removeprefix(f"{ROOT}/")] = None

    async def main_loop(self) -> None:
        """Asks itself; the event loop's thread prepares so small an image, too."""
        assert self._listener is not None  # noqa: S101 it has started
        url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/predict"
        content = {"image": base64.b64encode(EXAMPLE.read_bytes()).decode()}
        await asyncio.to_thread(requests.post, url, json=content, timeout=30)
        while self.server_state.connections:  # noqa: ASYNC110 it must end before the trace begins
            await asyncio.sleep(0.01)
        sys.setprofile(self._note)
        await asyncio.to_thread(requests.post, url, json=content, timeout=30)
        sys.setprofile(None)
        self.should_exit = True


def purpose(module: str) -> str:
    """Returns the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse((ROOT / module).read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")


def main() -> None:
    """Prints a row for each module."""
    os.environ |= SETTINGS
    from fastapi_onnx.app import app  # it reads the settings

    server = TracedServer(app, Settings())
    server.run()
    for module in server.modules:
        print(f"| `{module}` | {purpose(module)} |")  # noqa: T201


if __name__ == "__main__":
    main()
