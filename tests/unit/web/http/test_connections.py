"""Who makes room for whom, how much room the system gives, and whom a listening port warns of."""

import asyncio
import errno
import resource
import socket
from typing import Any, cast
from unittest.mock import Mock

import pytest
from pydantic import SecretStr

from smallplates.settings import Settings
from smallplates.web import server as server_module
from smallplates.web.http.protocol import Connections
from smallplates.web.server import Server, listen, most_connections

ALL = "0.0.0.0"  # noqa: S104 nothing listens there


def connection() -> asyncio.Transport:
    return cast(asyncio.Transport, Mock(spec_set=["abort"]))


def aborted(transport: asyncio.Transport) -> bool:
    return bool(cast(Any, transport).abort.called)  # Any: a mock


def test_the_longest_waiting_goes_first() -> None:
    connections = Connections(most=16)
    first, second, third = (connection() for _ in range(3))
    for transport in (first, second, third):
        connections.mark_idle(transport)
    connections.mark_busy(first)
    connections.mark_idle(first)  # its answer is out: it waits again, behind the others
    connections.mark_idle(second)  # nothing new
    assert connections.make_room()
    assert [aborted(transport) for transport in (first, second, third)] == [False, True, False]
    connections.mark_busy(third)
    assert connections.make_room()
    assert not connections.make_room()
    assert [aborted(transport) for transport in (first, second, third)] == [True, True, False]


def test_where_all_are_busy_there_is_no_room() -> None:
    connections = Connections(most=16)
    for _ in range(16):
        assert connections.add()
    assert not connections.add()
    idle = connection()
    connections.mark_idle(idle)
    assert connections.add()
    assert aborted(idle)
    assert connections.open == 17


@pytest.mark.parametrize(
    ("soft", "hard", "most", "raised"),
    [
        (1024, 1024, 896, None),
        (1024, 65536, 4096, 4224),
        (65536, 65536, 4096, None),
        (100, 100, 16, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 4096, None),
        (1024, resource.RLIM_INFINITY, 4096, 4224),
    ],
)
def test_the_systems_limit(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, most: int, raised: int | None
) -> None:
    asked: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: asked.append(limit))
    assert most_connections(Settings()) == most
    assert asked == ([] if raised is None else [(resource.RLIMIT_NOFILE, (raised, hard))])


def test_other_ports_have_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert most_connections(Settings(tcp_port=1, grpc_port=2)) == 1024 - 128 - 256 - 256


class Listener:
    """A listening socket whose `accept` fails as commanded."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.asked = 0
        self.pair = socket.socketpair()
        self.pair[1].send(b"x")  # readable for ever, as a listener with a connection is

    def accept(self) -> None:
        self.asked += 1
        raise OSError(self.errors.pop(0) if self.errors else errno.EMFILE, "commanded")

    def fileno(self) -> int:
        return self.pair[0].fileno()


def test_accepting_pauses_and_never_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "ACCEPT_PAUSE_S", 0.02)
    listener = Listener(errno.ECONNABORTED, errno.EPROTO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    server = Server(Mock(), Settings())
    waiting = connection()
    server.connections.mark_idle(waiting)

    async def main() -> None:
        pauses = 0
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def counted(*arguments: Any) -> asyncio.TimerHandle:
            nonlocal pauses
            pauses += arguments[0] == 0.02
            return call_later(*arguments)

        monkeypatch.setattr(loop, "call_later", counted)
        server._listener = cast(socket.socket, listener)
        server.accept()
        while pauses < 4:  # noqa: ASYNC110 the loop itself is watched
            await asyncio.sleep(0)
        loop.remove_reader(listener.fileno())
        assert listener.asked == pauses + 2  # two clients had gone already

    asyncio.run(main())
    assert aborted(waiting)
    for end in listener.pair:
        end.close()


def test_a_refusal_is_told() -> None:
    server = Server(Mock(), Settings(max_connections=16))
    for _ in range(16):
        server.connections.add()
    ours, theirs = socket.socketpair()
    with ours:
        server.connect(theirs)
        answer = ours.makefile("rb").read()  # to the end: it is closed
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n")
    assert server.connections.open == 16


def test_idle_connections_outlast_those_of_pools_and_proxies() -> None:
    config = Server(Mock(), Settings()).config
    assert config.timeout_keep_alive > 60  # a load balancer's minute


@pytest.mark.parametrize(
    ("address", "key", "warnings"),
    [
        (ALL, None, 1),
        ("::", None, 1),
        ("192.0.2.1", None, 1),
        ("127.0.0.1", None, 0),
        ("::1", None, 0),
        (ALL, SecretStr("secret"), 0),
    ],
)
def test_a_public_port_without_a_key_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, address: str, key: SecretStr | None, warnings: int
) -> None:
    log = Mock()
    monkeypatch.setattr(server_module, "logger", lambda: log)
    listen(Mock(**{"getsockname.return_value": (address, 8000)}), Settings(api_key=key))
    assert log.warning.call_count == warnings
