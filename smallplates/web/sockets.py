"""Binds the sockets on which web processes listen; called by them, and by the parent of several."""

import contextlib
import socket
from collections.abc import Iterator

from smallplates.errors import ConfigurationError
from smallplates.settings import Settings

UNREAD_MS = 60_000  # a client that acknowledges nothing for this long is gone


def bind(settings: Settings, setting: str = "port", shared: bool = False) -> socket.socket:
    """Returns a socket bound to the port in a setting that does not listen yet.

    `shared` means that several processes bind the port; otherwise nobody else can, until `allow_reuse`.
    Raises ConfigurationError.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
    with contextlib.ExitStack() as after_error, cannot_listen(settings, setting):
        after_error.enter_context(listener)
        listener.bind((settings.host, getattr(settings, setting)))
        after_error.pop_all()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return listener


def allow_reuse(listener: socket.socket) -> None:
    """Lets the next service bind the port while connections linger; called before `listener` listens."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


@contextlib.contextmanager
def reserve(settings: Settings, shared: bool = False) -> Iterator[None]:
    """Keeps the ports of TCP and gRPC, if they are set, for processes that `bind` them as `shared`.

    Another service that shares a port among its own processes would let us have it, and each would get
    requests for the other. Raises ConfigurationError.
    """
    with contextlib.ExitStack() as stack:
        for setting in ("tcp_port", "grpc_port"):
            port = getattr(settings, setting)
            if shared and port == 0:
                raise ConfigurationError(
                    f"SERVING_{setting.upper()}=0 needs SERVING_WEB_PROCESSES=1: all share the port"
                )
            if port is not None:
                listener = stack.enter_context(bind(settings, setting))  # only if nobody listens
                if shared:
                    listener.close()
                    stack.enter_context(bind(settings, setting, shared=True))
        yield


@contextlib.contextmanager
def cannot_listen(settings: Settings, setting: str = "port") -> Iterator[None]:
    """Turns errors into a ConfigurationError that names host and port."""
    try:
        yield
    except (OSError, TypeError, ValueError) as error:  # the others: no host can have this name
        place = f"SERVING_HOST={settings.host} SERVING_{setting.upper()}={getattr(settings, setting)}"
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot listen on {place}: {reason}") from error
