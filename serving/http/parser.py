"""httptools' parser, for a server that upgrades to nothing; `http_protocol.py` has one per connection.

RFC 9110 lets a server ignore `Upgrade`. httptools does not: it takes the request's body for the new
protocol's, so the request would be answered without its body, and the body read as the next request.
Java's HttpClient asks every server for HTTP/2 in this way.
"""

from collections.abc import Iterator
from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

OFFERS = (b"upgrade", b"http2-settings")  # what the Connection header says of an upgrade


class Listener(Protocol):
    """What is told of requests, as httptools has it; `url` and `headers` are those of the newest."""

    url: bytes
    headers: list[tuple[bytes, bytes]]

    def on_message_begin(self) -> None:
        """A request."""

    def on_url(self, url: bytes) -> None:
        """A part of its target."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""

    def on_headers_complete(self) -> None:
        """The head is there."""

    def on_body(self, body: bytes) -> None:
        """A part of the body."""

    def on_message_complete(self) -> None:
        """The whole request is there."""


class RequestParser:
    """Reads a request that offers an upgrade a second time, without the offer."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.on_message_begin = listener.on_message_begin
        self.on_url = listener.on_url
        self.on_header = listener.on_header
        self.on_body = listener.on_body
        self._renew()

    def _renew(self) -> None:
        self._parser = HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self.get_method = self._parser.get_method
        self.get_http_version = self._parser.get_http_version
        self.should_keep_alive = self._parser.should_keep_alive
        self.should_upgrade = self._parser.should_upgrade

    def on_headers_complete(self) -> None:
        """Of a request that offers an upgrade it comes again."""
        if not self.should_upgrade():
            self._listener.on_headers_complete()

    def on_message_complete(self) -> None:
        """Of a request that offers an upgrade it comes too early."""
        if not self.should_upgrade():
            self._listener.on_message_complete()

    def feed_data(self, data: bytes) -> None:
        """Raises HttpParserError, also for CONNECT, which is nothing without its tunnel."""
        while True:
            try:
                self._parser.feed_data(data)
            except HttpParserUpgrade as upgrade:
                if self.get_method() == b"CONNECT":
                    raise HttpParserError("there is no tunnel here") from upgrade
                data = b"".join(self._plain_head()) + data[upgrade.args[0] :]
                self._renew()
            else:
                return

    def _plain_head(self) -> Iterator[bytes]:
        """The head that was read, without its offer."""
        version = self.get_http_version().encode()
        yield b"%s %s HTTP/%s\r\n" % (self.get_method(), self._listener.url, version)
        for name, value in self._listener.headers:
            if name == b"connection":
                words = (word.strip() for word in value.split(b","))
                value = b", ".join(word for word in words if word.lower() not in OFFERS)
            if name != b"upgrade":
                yield b"%s: %s\r\n" % (name, value)
        yield b"\r\n"
