"""Options of both clients."""

import ipaddress
from dataclasses import KW_ONLY, dataclass, field
from urllib.parse import urlsplit

from smallplates.client.dialects import DIALECTS, Name

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(eq=False)
class Options:
    """Arguments of `Client` and `AsyncClient`; times are in seconds. Raises ValueError."""

    url: str = DEFAULT_URL
    """Base URL of the service, with a path if a gateway needs one."""

    _: KW_ONLY

    api_key: str | None = field(default=None, repr=False)
    """Sent as `Authorization: Bearer KEY`."""

    protocol: Name = "native"
    """`native`, or `triton`: the Open Inference Protocol; see `triton.py`."""

    timeout_s: float = 30.0
    """Budget of one call, all tries and pauses together; each call may set its own."""

    service_timeout_s: float = 30.0
    """Largest time limit that one try sends to the service (X-Request-Timeout-Ms). If the service's own
    limit, `SERVING_REQUEST_TIMEOUT_MS`, is shorter, that one applies.
    """

    grace_s: float = 0.1
    """Part of the budget, at most half, reserved for the service's own 504, which says more."""

    connect_timeout_s: float = 2.0
    """Time limit for connecting, in each try."""

    tries: int = 8
    """Largest number of times that one request is sent. `exchange.py` says what is retried."""

    backoff_s: float = 0.1
    """Longest first pause; it doubles with every try, and the actual pause is a random part of it."""

    backoff_cap_s: float = 5.0
    """Longest pause, unless Retry-After asks for more."""

    retry_after_cap_s: float = 10.0
    """Longest Retry-After that is waited for; above it the error is raised at once."""

    connections: int = 32
    """Largest number of connections; further calls wait for one."""

    trust_env: bool = True
    """Whether to use the environment's proxies (HTTPS_PROXY, NO_PROXY ...); never for loopback."""

    def __post_init__(self) -> None:
        """Checks the options; the clients extend it."""
        parts = urlsplit(self.url)
        has_more = parts.query or parts.fragment or parts.port == 0  # or raises ValueError
        if parts.scheme not in ("http", "https") or not parts.hostname or has_more:
            raise ValueError(f"{self.url!r} must have the form http://host:port")
        self.url = self.url.rstrip("/")
        if self.protocol not in DIALECTS:
            raise ValueError(f"{self.protocol!r} is not one of {', '.join(DIALECTS)}")
        times = (self.timeout_s, self.service_timeout_s, self.connect_timeout_s)
        if min(times) <= 0 or self.tries < 1 or self.connections < 1:
            raise ValueError("times, tries and connections must be positive")
        pauses = (self.grace_s, self.backoff_s, self.backoff_cap_s, self.retry_after_cap_s)
        if min(pauses) < 0:
            raise ValueError("pauses cannot be negative")

    @property
    def address(self) -> str:
        """The URL for messages: without the name and password that it may contain."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    @property
    def uses_proxies(self) -> bool:
        """True when the environment's proxies are used; false for loopback."""
        return self.trust_env and not is_loopback(urlsplit(self.url).hostname or "")


def is_loopback(host: str) -> bool:
    """Returns whether a URL's host is this machine, by name or by address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
