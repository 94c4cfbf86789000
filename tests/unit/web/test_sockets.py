"""Ports: a service that starts keeps its own, and finds out at once that another has them."""

import socket

import pytest

from smallplates.errors import ConfigurationError
from smallplates.settings import Settings
from smallplates.web.sockets import allow_reuse, bind, reserve
from tests.servers import free_port


def test_a_service_that_still_loads_keeps_its_port() -> None:
    settings = Settings(port=free_port())
    with bind(settings), pytest.raises(ConfigurationError, match=f"SERVING_PORT={settings.port}"):
        bind(settings)


def test_the_next_service_has_the_port_although_connections_linger() -> None:
    settings = Settings(port=free_port())
    with bind(settings) as listener:
        allow_reuse(listener)
        listener.listen()
        with socket.create_connection(("127.0.0.1", settings.port)):
            listener.accept()[0].close()  # first, so that it lingers
    bind(settings).close()


@pytest.mark.parametrize("shared", [False, True])
def test_two_settings_with_the_same_port_are_refused(shared: bool) -> None:
    settings = Settings(tcp_port=(port := free_port()), grpc_port=port)
    expected = pytest.raises(ConfigurationError, match=f"SERVING_GRPC_PORT={port}")
    with expected, reserve(settings, shared):
        pass
