"""`docker/haproxy.cfg` before stand-ins: what is tried again, and what is not."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest
import requests

from tests.docker import traffic
from tests.docker.containers import HARDENED, base, image, logs, run, wait_until
from tests.servers import ROOT

pytestmark = [pytest.mark.docker, pytest.mark.timeout(3000)]
NETWORK = "tested-proxy"
NAME = "fastapi_server"
STUB = ROOT / "tests" / "docker" / "stub_replica.py"
CONFIGURATION = ROOT / "docker" / "haproxy.cfg"
KEPT = b"x" * 300_000
TOO_LONG_TO_KEEP = b"x" * 1_000_000


@contextmanager
def started(*options: str, network: str = NETWORK) -> Iterator[str]:
    """A container of a network, the test's own as a rule, until the block ends."""
    identity = run("docker", "run", "--detach", *HARDENED, "--network", network, *options)
    try:
        yield identity
    finally:
        run("docker", "rm", "--force", identity)


class Proxy:
    """The proxy before one stand-in for each of the ways."""

    def __init__(self, identity: str, replicas: dict[str, str]) -> None:
        self.identity = identity
        self.url = f"http://{run('docker', 'port', identity, '8000').splitlines()[0]}"
        self.replicas = replicas

    def post(self, body: bytes) -> int:
        return requests.post(f"{self.url}/predict", body, timeout=30).status_code

    def count(self, way: str) -> int:
        """Requests that reached this stand-in."""
        ask = (
            "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/count').read().decode())"
        )
        return int(run("docker", "exec", self.replicas[way], "python", "-c", ask))

    def reaches(self, ways: set[str]) -> bool:
        """Whether all of them are found, and answer."""
        answers = [requests.get(f"{self.url}/way", timeout=10) for _ in range(8)]
        return {answer.text for answer in answers if answer.status_code == 200} == ways

    def finds(self, count: int) -> bool:
        """Whether it has learnt the addresses of this many replicas."""
        return len(set(re.findall(r"(\w+): IP changed", logs(self.identity)))) == count


def stand_in(way: str) -> AbstractContextManager[str]:
    """A replica that answers this way, until the block ends."""
    where = ("--network-alias", NAME, "--volume", f"{STUB}:/stub_replica.py:ro")
    return started(*where, image("flask_app"), "python", "/stub_replica.py", way)


@contextmanager
def proxy_before(*ways: str) -> Iterator[Proxy]:
    """Starts stand-ins and the proxy, and waits until it finds them."""
    with ExitStack() as stack:
        run("docker", "network", "create", NETWORK)
        stack.callback(run, "docker", "network", "rm", NETWORK)
        replicas = {way: stack.enter_context(stand_in(way)) for way in ways}
        configured = ("--volume", f"{CONFIGURATION}:/usr/local/etc/haproxy/haproxy.cfg:ro")
        identity = stack.enter_context(
            started("--publish", "127.0.0.1::8000", *configured, base("HAPROXY"))
        )
        proxy = Proxy(identity, replicas)
        wait_until(lambda: connects(proxy) and proxy.reaches(set(ways)), "the stand-ins")
        yield proxy


def connects(proxy: Proxy) -> bool:
    try:
        return requests.get(proxy.url, timeout=10).status_code == 200
    except requests.ConnectionError:
        return False


@pytest.mark.usefixtures("images")
def test_503_is_tried_again_elsewhere() -> None:
    with proxy_before("refuse", "answer") as proxy:
        assert [proxy.post(KEPT) for _ in range(20)] == [200] * 20
        assert proxy.count("refuse") > 0
        assert proxy.count("answer") == 20


@pytest.mark.usefixtures("images")
def test_what_may_have_been_computed_is_not_tried_again() -> None:
    with proxy_before("hang up", "answer") as proxy:
        statuses = [proxy.post(KEPT) for _ in range(20)]
        assert set(statuses) == {200, 502}
        assert statuses.count(502) == proxy.count("hang up")
        assert statuses.count(200) == proxy.count("answer")


@pytest.mark.usefixtures("images")
def test_long_requests_get_their_503() -> None:
    with proxy_before("refuse", "answer") as proxy:
        statuses = [proxy.post(TOO_LONG_TO_KEEP) for _ in range(20)]
        assert set(statuses) == {200, 503}
        assert statuses.count(503) == proxy.count("refuse")


@pytest.mark.usefixtures("images")
def test_nobody_behind_the_proxy_is_said_at_once() -> None:
    with proxy_before("answer") as proxy:
        run("docker", "stop", "-t", "1", proxy.replicas["answer"])
        wait_until(lambda: proxy.post(KEPT) == 503, "the proxy's own 503")


@pytest.mark.usefixtures("images")
def test_replicas_that_are_still_starting_are_not_asked() -> None:
    count = 4  # more than a request is tried
    command = (image("flask_app"), "sleep", "600")
    with (
        proxy_before("answer") as proxy,
        ExitStack() as stack,
        traffic.Senders(f"{proxy.url}/predict", KEPT, 8) as senders,
    ):
        starting = [stack.enter_context(started(*command, network="bridge")) for _ in range(count)]
        for identity in starting:  # at once, as far as the proxy can tell
            run("docker", "network", "connect", "--alias", NAME, NETWORK, identity)
        wait_until(lambda: proxy.finds(1 + count), "the addresses of all of them")
        senders.answered(100)
    assert set(senders.statuses) == {200}
