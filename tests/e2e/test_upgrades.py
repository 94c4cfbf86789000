"""Offers of another protocol on the HTTP port: they are ignored, and hide nothing from the parser."""

import re
import socket
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from tests import servers
from tests.fake.backend import command

pytestmark = pytest.mark.slow

HTTP2 = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
WEBSOCKET = b"Upgrade: websocket\r\nConnection: keep-alive, upgrade\r\nSec-WebSocket-Version: 13\r\n"
PHOTO = command(class_index=3)
LAST = b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service that answers at once."""
    gate = str(tmp_path_factory.mktemp("gate") / "open")
    with servers.api("tests.fake", {"FAKE_GATE": gate, "SERVING_LOG_LEVEL": "error"}) as base:
        yield base


def answers(url: str, *pieces: bytes) -> list[bytes]:
    """The statuses of all answers to what is sent piece by piece on one connection."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
        received = connection.makefile("rb").read()
    return re.findall(rb"HTTP/1\.1 (\d+)", received)


def photo(offer: bytes, body: bytes = PHOTO) -> bytes:
    """A request with a body of a known length."""
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n" % (offer, len(body))
    return head + body


def photo_in_chunks(offer: bytes) -> bytes:
    """A request with a body of no known length."""
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\n%sTransfer-Encoding: chunked\r\n\r\n" % offer
    return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(PHOTO), PHOTO)


@pytest.mark.parametrize("offer", [HTTP2, WEBSOCKET], ids=["http2", "websocket"])
@pytest.mark.parametrize("make", [photo, photo_in_chunks])
def test_the_body_of_an_offer_belongs_to_it(
    url: str, make: Callable[[bytes], bytes], offer: bytes
) -> None:
    request = make(offer)
    assert answers(url, request * 2 + LAST) == [b"200"] * 3
    single = [request[place : place + 1] for place in range(len(request))]
    assert answers(url, *single, LAST) == [b"200"] * 2


def test_a_body_is_never_another_request(url: str) -> None:
    head = photo(HTTP2, LAST)[: -len(LAST)]
    assert answers(url, head, LAST, LAST) == [b"400", b"200"]


def test_a_client_that_offers_and_closes_is_told_so(url: str) -> None:
    offer = HTTP2.replace(b"Upgrade,", b"Upgrade, close,")
    assert answers(url, photo(offer)) == [b"200"]


def test_tunnels_are_refused(url: str) -> None:
    request = b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: x\r\n\r\n"
    assert answers(url, request + LAST) == [b"400"]
