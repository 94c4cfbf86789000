"""Binds the sockets on which web processes listen; called by them, and by the parent of several."""

import contextlib
import socket
from collections.abc import Iterator

from smallplates.errors import ConfigurationError
from smallplates.settings import Settings

UNREAD_MS = 60_000  # a client that acknowledges nothing for this long is gone


def bind(settings: Settings, setting: str = "port", shared: bool = False) -> socket.socket:
    """Returns a socket bound to the port in a setting that does not listen yet.

    `shared` means that several processes bind the port. Raises ConfigurationError.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
    with cannot_listen(settings, setting):
        listener.bind((settings.host, getattr(settings, setting)))
    return listener


def reserve(settings: Settings, setting: str) -> socket.socket:
    """Returns a socket that keeps a port for processes that `bind` it as `shared`.

    Another service that shares the port among its own processes would let us have it, and each would get
    requests for the other. Raises ConfigurationError.
    """
    if getattr(settings, setting) == 0:
        raise ConfigurationError(
            f"SERVING_{setting.upper()}=0 needs SERVING_WEB_PROCESSES=1: all share the port"
        )
    bind(settings, setting).close()  # only if nobody listens
    return bind(settings, setting, shared=True)


@contextlib.contextmanager
def cannot_listen(settings: Settings, setting: str = "port") -> Iterator[None]:
    """Turns errors into a ConfigurationError that names host and port."""
    try:
        yield
    except (OSError, TypeError, ValueError) as error:  # the others: no host can have this name
        place = f"SERVING_HOST={settings.host} SERVING_{setting.upper()}={getattr(settings, setting)}"
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot listen on {place}: {reason}") from error
