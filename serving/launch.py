"""`make run`: the API and the page together, until Ctrl-C. Both are ordinary processes.

Environment: BACKEND (fastapi_onnx or fastapi_pt), HOST and PORT of the API, UI_HOST and UI_PORT of
the page; everything else goes to the two as it is.
"""

if __name__ == "__main__":
    from serving.system.signals import end_on_signals

    end_on_signals()

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from types import FrameType

from serving.system.pdeathsig import set_pdeathsig

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30


class Launcher:
    """Starts both processes, waits for them, and ends both when either one ends."""

    def __init__(self, environment: dict[str, str]) -> None:
        host, port = environment.get("HOST", "127.0.0.1"), environment.get("PORT", "8000")
        ui_host = environment.get("UI_HOST", "127.0.0.1")
        ui_port = environment.get("UI_PORT", "5000")
        self.api_url = f"http://{reachable(host)}:{port}"
        self.page_url = f"http://{reachable(ui_host)}:{ui_port}"
        backend = environment.get("BACKEND", "fastapi_onnx")
        self.commands = [
            ["serving", backend, "--host", host, "--port", port],
            ["flask_app"],
        ]
        self.environment = {
            "UI_API_URL": self.api_url,
            "UI_API_KEY": environment.get("SERVING_API_KEY", ""),
            "SERVING_LOG_FORMAT": "console",
            **environment,
            "UI_HOST": ui_host,
            "UI_PORT": ui_port,
        }
        if not self.environment["UI_API_KEY"]:
            del self.environment["UI_API_KEY"]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.stopping = threading.Event()

    def run(self) -> int:
        """Runs until a signal or until one process ends; returns the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:  # nohup
                signal.signal(number, self._on_signal)
        if "MAKELEVEL" in self.environment:  # make must not be killed and this go on
            end_with_parent(os.getppid())
        for command in self.commands:
            # a session of their own: Ctrl-C reaches this process, which ends them in order
            self.processes.append(
                subprocess.Popen(  # noqa: S603 our own modules
                    [sys.executable, "-m", *command],
                    env=self.environment,
                    start_new_session=True,
                    preexec_fn=partial(end_with_parent, os.getpid()),
                )
            )
        try:
            if self._wait_until_ready():
                print(f"\n  page  {self.page_url}\n  API   {self.api_url}/docs\n", flush=True)  # noqa: T201
                while not self.stopping.wait(0.5):
                    if self._ended():
                        break
            return 0 if self.stopping.is_set() else 1
        finally:
            self._stop()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """The first one ends both in order, the second one at once."""
        if self.stopping.is_set():
            for process in self.processes:
                process.kill()
        self.stopping.set()

    def _ended(self) -> bool:
        return any(process.poll() is not None for process in self.processes)

    def _wait_until_ready(self) -> bool:
        end = time.monotonic() + START_TIMEOUT_S
        waiting = [f"{self.api_url}/health/ready", f"{self.page_url}/healthz"]
        while waiting and not self._ended() and time.monotonic() < end:
            if answers(waiting[0]):
                waiting.pop(0)
            elif self.stopping.wait(0.2):
                return False
        if waiting and not self._ended():
            print(f"{waiting[0]} did not answer within {START_TIMEOUT_S} s", file=sys.stderr)  # noqa: T201
        return not waiting and not self._ended()

    def _stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + STOP_TIMEOUT_S
        for process in self.processes:
            try:
                process.wait(max(0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def end_with_parent(parent: int) -> None:
    """This process gets SIGTERM when its parent has gone, however that went; on Linux."""
    if not set_pdeathsig(parent, signal.SIGTERM):
        signal.raise_signal(signal.SIGTERM)


def reachable(host: str) -> str:
    """The address under which a server that listens on `host` is reached from here."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 compared, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def answers(url: str) -> bool:
    """Whether GET `url` gives 200; never through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2):
            return True
    except (OSError, urllib.error.URLError):
        return False


if __name__ == "__main__":
    sys.exit(Launcher(dict(os.environ)).run())
