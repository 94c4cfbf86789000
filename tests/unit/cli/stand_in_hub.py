"""A stand-in for the Hugging Face Hub on loopback: one repository of the given files."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" * 6 + "c0ff"
REPOSITORY = "org/mood"
REVISIONS = ("main", "v2", COMMIT)
TOKEN = "hf_token"


class Hub(ThreadingHTTPServer):
    """`files` by path; `asked` has the paths that were downloaded."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """The few paths that the client asks; `org/gated` needs a token."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answers GET, and HEAD without the body."""
        path = self.path.partition("?")[0].removeprefix("/")
        api = path.startswith("api/models/")
        repository = "/".join(path.removeprefix("api/models/").split("/")[:2])
        place = path.removeprefix("api/models/").removeprefix(f"{repository}/").split("/", 2)
        if repository == "org/broken":
            self.answer(500)
        elif repository not in (REPOSITORY, "org/gated"):
            self.answer(404, code="RepoNotFound")
        elif place[1] not in REVISIONS:
            self.answer(404, code="RevisionNotFound")
        elif api and place[0] == "revision":
            names = [{"rfilename": name} for name in self.server.files]
            self.answer(200, json.dumps({"id": repository, "sha": COMMIT, "siblings": names}).encode())
        elif api:
            self.answer(200, json.dumps([entry(*item) for item in self.server.files.items()]).encode())
        elif repository == "org/gated" and self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.answer(401, code="GatedRepo")
        else:
            if self.command == "GET":
                self.server.asked.append(place[2])
            self.answer(200, self.server.files[place[2]])

    do_HEAD = do_GET  # noqa: N815

    def answer(self, status: int, body: bytes = b"{}", code: str = "") -> None:
        """Sends an answer with the headers of the hub."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Logs nothing."""


def entry(path: str, content: bytes) -> dict[str, object]:
    digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    return {"type": "file", "path": path, "size": len(content), "oid": digest}


@contextmanager
def running(files: Mapping[str, bytes]) -> Iterator[Hub]:
    """Runs the hub until the block ends."""
    with Hub(files) as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
