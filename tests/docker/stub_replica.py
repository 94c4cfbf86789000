"""Stands in for a replica behind the proxy: ready, and answers each POST in one way; see WAYS.

Run in a container with only the standard library. GET /way says which way it is, /count how many POSTs
reached it.
"""

import socketserver
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WAYS = {"answer": 200, "refuse": 503, "hang up": None}


class Replica(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    posts = 0

    def do_GET(self) -> None:
        """The probe's question, and the test's."""
        said = {"/way": sys.argv[1], "/count": str(Replica.posts)}
        self._send(200, said.get(self.path, "ready"))

    def do_POST(self) -> None:
        """Takes the body, then does what it is there for."""
        self.rfile.read(int(self.headers["Content-Length"]))
        Replica.posts += 1
        status = WAYS[sys.argv[1]]
        if status is None:
            self.close_connection = True
        else:
            self._send(status, sys.argv[1])

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


if __name__ == "__main__":
    socketserver.TCPServer.request_queue_size = 128
    ThreadingHTTPServer(("0.0.0.0", 8000), Replica).serve_forever()  # noqa: S104 in a container
