"""Services of the fake backend as real processes: their children, their connections, requests."""

import http.client
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import requests

from smallplates.models.folder import configured_models
from smallplates.settings import Settings
from smallplates.supervision.registry import EngineHandle, Planner, Registry
from tests import servers
from tests.fake.backend import command
from tests.fake.model import CLASSES
from tests.http_load import Answer
from tests.servers import metric, wait_for

WORKER = "smallplates.worker.process"
WEB = "smallplates.web.process"
WATCHFUL = "tests.fake.watchful"
FEW_DESCRIPTORS = "tests.fake.few_descriptors"
MANY_CORES = "tests.fake.many_cores"


def programs(server: psutil.Process, module: str) -> list[psutil.Process]:
    """The living child processes that run `python -m MODULE`."""
    children = []
    for child in server.children(recursive=True):
        try:
            if module in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                children.append(child)
        except psutil.NoSuchProcess:
            continue
    return children


@contextmanager
def fake_service(
    settings: dict[str, str],
    program: str = "smallplates.service",
    package: str = "tests.fake",
    **more: str,
) -> Iterator[tuple[str, psutil.Process]]:
    """A service's URL and its main process; the backend is a fake unless `package` names another."""
    named = {f"SERVING_{name.upper()}": value for name, value in more.items()}
    url = f"http://127.0.0.1:{(port := servers.free_port())}"
    command_line = [program, package, "--port", str(port)]
    with servers.running(command_line, f"{url}/health/ready", {**settings, **named}) as process:
        yield url, psutil.Process(process.pid)


@asynccontextmanager
async def local_engine(settings: Settings, plan: Planner) -> AsyncIterator[EngineHandle]:
    """The engine of the model that the settings name, in this process."""
    registry = Registry(settings, plan, configured_models(settings))
    await registry.start()
    try:
        yield registry.engines[0].handle(0)
    finally:
        await registry.close()


def ended(settings: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A service that ends by itself."""
    program = (sys.executable, "-m", "smallplates.service", *(arguments or ("tests.fake",)))
    return servers.run(*program, env={"SERVING_PORT": "0", **settings})


def check_one_sentence(process: subprocess.CompletedProcess[str], *words: str) -> None:
    """The last line is the reason; nothing is a defect of ours."""
    assert process.returncode == 1
    assert "Traceback" not in process.stderr
    last = process.stderr.splitlines()[-1]
    assert last.startswith("the service cannot start: ")
    for word in words:
        assert word in last


def ask(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return servers.run(sys.executable, "-m", "smallplates", "ask", *arguments, env=env)


def change(url: str, model: str, what: str, key: str = "chief", **parameters: str) -> requests.Response:
    """Loads or unloads a model."""
    path, headers = f"{url}/v2/repository/models/{model}/{what}", {"Authorization": f"Bearer {key}"}
    return requests.post(path, json={"parameters": parameters}, headers=headers, timeout=60)


def switch(url: str, version: str, key: str = "chief", model: str = "fake") -> requests.Response:
    return change(url, model, "load", key, version=version)


def predict(url: str, picture: bytes, **headers: str | bytes) -> requests.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.post(f"{url}/predict", data=picture, headers=named, timeout=120)


def close(gate: Path) -> None:
    """Computations that are told so are held until this file exists."""
    for file in (gate, gate.with_suffix(".held")):
        file.unlink(missing_ok=True)


def hold(senders: ThreadPoolExecutor, url: str, gate: Path, **headers: str) -> Future[requests.Response]:
    """A request that a worker computes, until the file `gate` exists."""
    close(gate)
    answer = senders.submit(predict, url, command(held=True), **headers)
    wait_for(gate.with_suffix(".held").exists)
    return answer


def raw_request(url: str, picture: bytes) -> socket.socket:
    """Sends a whole request and leaves its answer unread."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0))
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(picture)}\r\n\r\n"
    connection.sendall(head.encode() + picture)
    return connection


def numbered(count: int) -> Iterator[tuple[int, bytes]]:
    """Pictures whose class is their number."""
    for index in range(count):
        yield index, command(class_index=index % CLASSES)


def check_right(answers: list[Answer], count: int) -> None:
    """Every question has one answer, and it is its own."""
    assert sorted(answer.tag for answer in answers) == list(range(count))
    wrong = [a for a in answers if a.status == 200 and a.label != str(a.tag % CLASSES)]
    assert not wrong


@contextmanager
def repeatedly(action: threading.Thread) -> Iterator[None]:
    """Runs a thread beside the block and waits for it."""
    action.start()
    try:
        yield
    finally:
        action.join()


def attempt(ask: Callable[[], bool]) -> bool:
    """False where the connection breaks."""
    try:
        return ask()
    except OSError:  # those of requests are, too
        return False


def ready_workers(url: str) -> int:
    return int(metric(url, "serving_ready_workers"))


def client_ports(web: psutil.Process) -> set[int]:
    """The other ends of a web process's connections."""
    return {address.raddr.port for address in web.net_connections("tcp") if address.raddr}


def connect_to_each(
    url: str, webs: list[psutil.Process], held: ExitStack
) -> list[http.client.HTTPConnection]:
    """Connections that have been answered, opened until each web process has one."""
    made: list[http.client.HTTPConnection] = []

    def one_more() -> bool:
        made.append(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60))
        held.callback(made[-1].close)
        made[-1].request("GET", "/health/live")
        assert made[-1].getresponse().read()
        return all(client_ports(web) for web in webs)

    wait_for(one_more)
    return made
