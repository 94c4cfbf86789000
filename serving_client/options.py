"""What both clients are made with."""

import ipaddress
from dataclasses import KW_ONLY, dataclass, field
from typing import get_args
from urllib.parse import urlsplit

from serving_client.dialects import Protocol

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(eq=False)
class Options:
    """`Client` and `AsyncClient` take these arguments; times are in seconds. Raises ValueError."""

    url: str = DEFAULT_URL
    """Base URL of the service, with a path where a gateway wants one."""

    _: KW_ONLY

    api_key: str | None = field(default=None, repr=False)
    """Sent as `Authorization: Bearer KEY`."""

    protocol: Protocol = "native"
    """`triton`: the Open Inference Protocol, which Triton speaks, and the service; see `triton.py`."""

    timeout_s: float = 30.0
    """Budget of one call, all tries and pauses together; each call may have its own."""

    service_timeout_s: float = 30.0
    """Most that one try asks the service for (X-Request-Timeout-Ms), which refuses more than its own
    limit, `SERVING_REQUEST_TIMEOUT_MS`, with 422."""

    grace_s: float = 0.1
    """Part of the budget, half of it at most, kept for the service's own 504 to arrive: it says more."""

    connect_timeout_s: float = 2.0
    """Time to reach the service, in each try."""

    tries: int = 8
    """Most times that one request is sent; 1: never again. See `exchange.py` for what is tried again."""

    backoff_s: float = 0.1
    """Longest first pause; it doubles with every try, and the pause is a random part of it."""

    backoff_cap_s: float = 5.0
    """Longest pause, but for what Retry-After asks."""

    retry_after_cap_s: float = 10.0
    """An answer that asks for a longer pause than this is handed on, not waited for."""

    connections: int = 32
    """Most connections at the same time; further calls wait for one."""

    trust_env: bool = True
    """Whether the environment's proxies (HTTPS_PROXY, NO_PROXY ...) are used; never for loopback."""

    def __post_init__(self) -> None:
        """Checks; the clients extend it."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{self.url!r} is not like http://host:port")
        self.url = self.url.rstrip("/")
        if self.protocol not in get_args(Protocol):
            raise ValueError(f"{self.protocol!r} is none of {', '.join(get_args(Protocol))}")
        times = (self.timeout_s, self.service_timeout_s, self.connect_timeout_s)
        if min(times) <= 0 or self.tries < 1 or self.connections < 1:
            raise ValueError("times, tries and connections must be positive")
        pauses = (self.grace_s, self.backoff_s, self.backoff_cap_s, self.retry_after_cap_s)
        if min(pauses) < 0:
            raise ValueError("pauses cannot be negative")

    @property
    def uses_proxies(self) -> bool:
        """False for loopback, whatever the environment says."""
        return self.trust_env and not is_loopback(urlsplit(self.url).hostname or "")


def is_loopback(host: str) -> bool:
    """Whether a URL's host is this machine by name or by address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
