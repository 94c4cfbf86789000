"""Tells this machine's own names in a Host header from others; for the API and the page."""

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit


@lru_cache(1024)
def is_own(host: str, names: str = "") -> bool:
    """Returns whether a Host header is absent, has an address, or is localhost or one of `names`.

    A site can let its own name point to 127.0.0.1 (DNS rebinding). A browser then lets the site's pages
    read whatever listens there. `names` are separated by commas.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or host).removesuffix(".")
        if name.endswith(".localhost") or name in (
            "",
            "localhost",
            *map(str.strip, names.lower().split(",")),
        ):
            return True
        return bool(ip_address(name))
    except ValueError:
        return False
