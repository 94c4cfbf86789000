"""Runs the API and the page together until Ctrl-C: `make run`, which calls `python -m serving.launch`.

Environment: SERVICE (serving; serving_ray for a local Ray), BACKEND (fastapi_onnx or fastapi_pt), HOST
and PORT of the API, UI_HOST and UI_PORT of the page. Both processes get all other variables as they are.
"""

if __name__ == "__main__":
    from serving.system.signals import end_on_signals

    end_on_signals()

import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping
from functools import partial

from serving.system.pdeathsig import set_pdeathsig

STOP_TIMEOUT_S = 30
DEFAULTS = {
    "SERVICE": "serving",
    "BACKEND": "fastapi_onnx",
    "HOST": "127.0.0.1",
    "PORT": "8000",
    "UI_HOST": "127.0.0.1",
    "UI_PORT": "5000",
    "SERVING_LOG_FORMAT": "console",
}


def main(environment: Mapping[str, str]) -> int:
    """Runs both processes until a signal or until one ends; returns the exit code, 0 after a signal."""
    values = {**DEFAULTS, **environment}
    api = f"http://{reachable(values['HOST'])}:{values['PORT']}"
    page = f"http://{reachable(values['UI_HOST'])}:{values['UI_PORT']}"
    values = {"UI_API_URL": api, "UI_API_KEY": values.get("SERVING_API_KEY", ""), **values}
    service = [values["SERVICE"], values["BACKEND"], "--host", values["HOST"], "--port", values["PORT"]]
    processes: list[subprocess.Popen[bytes]] = []
    stopping = handle_signals(processes)
    if "MAKELEVEL" in values:  # a killed make must not leave this process behind
        end_with_parent(os.getppid())
    ready = False
    try:
        processes.extend(start(arguments, values) for arguments in (service, ["flask_app"]))
        while not stopping.wait(0.5 if ready else 0.1) and all(p.poll() is None for p in processes):
            if not ready and answers(f"{api}/health/ready") and answers(f"{page}/healthz"):
                ready = True
                print(f"\n  page  {page}\n  API   {api}/docs\n", flush=True)  # noqa: T201
        return 0 if stopping.is_set() else 1
    finally:
        stopping.set()
        signal.alarm(STOP_TIMEOUT_S)  # then they are killed
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def handle_signals(processes: list[subprocess.Popen[bytes]]) -> threading.Event:
    """Returns the event that the first signal sets; every further signal kills `processes`."""
    stopping = threading.Event()

    def on_signal(*_: object) -> None:
        if stopping.is_set():
            for process in processes:
                process.kill()
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, on_signal)
    return stopping


def start(arguments: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts `python -m ARGUMENTS` in a session of its own, which Ctrl-C does not reach."""
    return subprocess.Popen(  # noqa: S603 our own modules
        [sys.executable, "-m", *arguments],
        env=environment,
        start_new_session=True,
        preexec_fn=partial(end_with_parent, os.getpid()),
    )


def end_with_parent(parent: int) -> None:
    """Makes the end of `parent`, a process id, send SIGTERM to this process."""
    if not set_pdeathsig(parent, signal.SIGTERM):
        signal.raise_signal(signal.SIGTERM)


def reachable(host: str) -> str:
    """Returns the address at which this machine reaches a server that listens on `host`."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 compared, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def answers(url: str) -> bool:
    """Returns whether GET `url` answers 200; never asks through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(os.environ))
