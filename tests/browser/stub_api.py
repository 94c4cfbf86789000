"""Stub of the API for tests of the page: a real server with prepared answers, which records requests."""

import base64
import json
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.servers import wait_for

LABELS = ["Bread", "Dairy product", "Dessert", "Egg", "Fried food", "Meat", "Noodles/Pasta"]
LABELS += ["Rice", "Seafood", "Soup", "Vegetable/Fruit"]
SURE = {"Soup": 0.924, "Rice": 0.041, "Meat": 0.02, "Egg": 0.011, "Bread": 0.004}
UNSURE = {"Soup": 0.41, "Rice": 0.37, "Meat": 0.12, "Egg": 0.06, "Bread": 0.04}
MODEL = {
    "name": "food11",
    "version": "1",
    "title": "What food is this?",
    "description": "Upload a photo to identify what's on the plate.",
    "task": "image-classification",
    "labels": LABELS,
    "image": {"resize": 256, "center_crop": 224},
    "backend": "onnx",
    "device": "cpu",
    "execution_provider": "CPUExecutionProvider",
    "precision": "int8",
    "precision_reason": "it is fit, and faster",
    "thresholds": {"probability": 0.5, "margin": 0.15},
}
TIMES = "decode;dur=1.2, queue;dur=0.4, infer;dur=7.3, total;dur=9.6"


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: Any = None  # JSON of any shape; bytes are sent as they are
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """One request to /predict."""

    path: str
    headers: Mapping[str, str]
    body: Any  # JSON, or the bytes of anything else

    def json(self) -> Any:
        """The body as JSON, whatever its type was said to be."""
        return json.loads(self.body) if isinstance(self.body, bytes) else self.body

    @property
    def photo(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return base64.b64decode(self.body["image"], validate=True)


def ok(scores: Mapping[str, float] = SURE) -> Reply:
    """Returns an answer with the best classes, in the shape of the API's with top_k."""
    top = [{"label": label, "probability": p} for label, p in scores.items()]
    body = {"prediction": top[0]["label"], "probability": top[0]["probability"], "top": top}
    return Reply(200, body, {"Server-Timing": TIMES})


def error(status: int, code: str, retry_after: int | None = None) -> Reply:
    """Returns an error in the API's shape."""
    body = {"detail": f"stub says {code}", "code": code, "request_id": "stub-1"}
    return Reply(status, body, {} if retry_after is None else {"Retry-After": str(retry_after)})


class StubApi:
    """Stub on a port of its own; `down` and `up` keep the port."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held = threading.Event()
        """While cleared, /predict waits until it is set or the client disconnects."""
        self.port = 0
        self._server: _Server | None = None
        self.reset()

    def reset(self) -> None:
        """Resets everything: up, ready, no requests recorded."""
        self.held.set()
        if self.port and self._server is None:
            self.up()
        self.answers: deque[Reply] = deque()
        """Answers of the next requests; `usual` is the answer after them."""
        self.usual: Reply | Callable[[Asked], Reply] = ok()
        self.ready = Reply(200, {"status": "ready"})
        self.model: Any = dict(MODEL)
        """JSON that describes the model, or what makes that, or a whole reply, of the path."""
        self.metadata: Any = None  # JSON
        """Answer of `/v2/models/NAME`; None: the model."""
        self.asked: list[Asked] = []
        self.left = 0
        """Number of clients that disconnected while their request was held."""
        self.inside = 0
        self.most_inside = 0
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> None:
        self._server = _Server(self, self.port)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """Refuses connections, and closes the open ones."""
        if self._server is not None:
            self._server.shutdown()
            self._server.end_connections()
            self._server.server_close()
            self._server = None


@contextmanager
def stub_api() -> Iterator[StubApi]:
    stub = StubApi()
    stub.up()
    try:
        yield stub
    finally:
        stub.held.set()
        stub.down()


def until(condition: Callable[[], object], what: str) -> None:
    wait_for(condition, what)


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, stub: StubApi, port: int) -> None:
        self.stub = stub
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def end_connections(self) -> None:
        for connection in list(self.open):
            connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # Any: socketserver's own
        """Ignores errors: a client may disconnect."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.open.add(self.connection)
        with self.server.stub.lock:
            self.server.stub.connections += 1

    def finish(self) -> None:
        self.server.open.discard(self.connection)
        super().finish()

    def do_GET(self) -> None:
        stub = self.server.stub
        if self.path.endswith("/ready"):
            self._send(stub.ready)
        elif self.path.startswith("/v2/models/") and stub.metadata is not None:
            self._send(Reply(200, stub.metadata))
        else:
            model = stub.model(self.path) if callable(stub.model) else stub.model
            self._send(model if isinstance(model, Reply) else Reply(200, model))

    def do_POST(self) -> None:
        stub = self.server.stub
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Type"] == "application/json":
            with suppress(ValueError):
                body = json.loads(body)
        asked = Asked(self.path, dict(self.headers), body)
        with stub.lock:
            stub.asked.append(asked)
            stub.inside += 1
            stub.most_inside = max(stub.most_inside, stub.inside)
        gone = self._hold()
        with stub.lock:
            stub.inside -= 1
            stub.left += gone
            reply = stub.answers.popleft() if stub.answers and not gone else stub.usual
        if not gone:
            self._send(reply(asked) if callable(reply) else reply)

    def _hold(self) -> bool:
        """Waits while `held` is cleared; returns whether the client disconnected meanwhile."""
        while not self.server.stub.held.wait(0.01):
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                self.close_connection = True
                return True
        return False

    def _send(self, reply: Reply) -> None:
        raw = isinstance(reply.body, bytes)
        content = reply.body if raw else json.dumps(reply.body).encode()
        headers = {"X-Request-ID": self.headers.get("X-Request-ID", "stub-1"), **reply.headers}
        self.send_response(reply.status)
        self.send_header("Content-Type", "text/html" if raw else "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 Any: http.server's own
        """Logs nothing."""
