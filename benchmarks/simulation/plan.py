"""Description of a simulated run: replica, clients, load balancing, faults, autoscaling."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np


class Policy(StrEnum):
    """How a load balancer chooses a replica."""

    LEAST_OUTSTANDING = "least outstanding"
    TWO_CHOICES = "two choices"
    RANDOM = "random"
    ROUND_ROBIN = "round robin"


@dataclass(frozen=True)
class Service:
    """Replica: web processes in front of a bounded queue and workers."""

    batch_ms: Mapping[int, float]
    """Time of a batch by its size; the largest size is the batch cap."""

    workers: int = 2
    web_ms: float = 0.0
    """Time for which an admitted request occupies a web process."""

    web_processes: int = 1
    refusal_ms: float = 0.0
    """Time for which a refused request occupies a web process."""

    queue_size: int = 256
    """Requests admitted at the same time; one more is answered 503 (`SERVING_QUEUE_SIZE`)."""

    skips_left: bool = True
    """Whether a request whose client has left, or whose deadline has passed, is never computed."""

    variation: float = 0.0
    """Standard deviation of a batch's time, to its mean (gamma distribution; 1: exponential)."""

    def batch_seconds(self) -> list[float]:
        """Returns the time of batches of 0, 1, ... images; linear between the given sizes."""
        sizes = sorted(self.batch_ms)
        times = np.interp(range(sizes[-1] + 1), sizes, [self.batch_ms[size] for size in sizes]) / 1000
        return [float(seconds) for seconds in times]

    @cached_property
    def capacity(self) -> float:
        """Largest number of requests a second: that of the workers or of the web processes."""
        workers = self.workers * max(1000 * size / ms for size, ms in self.batch_ms.items())
        web = self.web_processes * 1000 / self.web_ms if self.web_ms else workers
        return min(workers, web)


@dataclass(frozen=True)
class Retries:
    """Client's policy; the defaults are those of `smallplates.client`."""

    tries: int = 8
    backoff_s: float = 0.1
    """Longest first pause; doubles with every try. The pause is a random part of it."""

    backoff_cap_s: float = 5.0
    retry_after_s: float = 1.0
    """Retry-After of a 503, added to the pause; 0: ignored."""

    timeout_s: float = 30.0
    """Budget of a request, all tries and pauses together."""

    patience_s: float | None = None
    """Time after which a client drops a try and sends the next one; None: only the budget counts."""

    def pause(self, tried: int, refused: bool, uniform: float) -> float:
        """Returns the pause after `tried` tries; `uniform` is a random number from 0 to 1."""
        longest = min(self.backoff_s * 2.0 ** (tried - 1), self.backoff_cap_s)
        return uniform * longest + (self.retry_after_s if refused else 0.0)


ONE_TRY = Retries(tries=1)
AT_ONCE = Retries(backoff_s=0.0, retry_after_s=0.0)


class Trouble(StrEnum):
    """What is wrong with a replica."""

    SLOW = "slow"
    DOWN = "down"
    """Refuses connections; requests in flight are lost."""

    REFUSING = "refusing"
    """Answers 503 at once, as the service does while no worker is ready."""


@dataclass(frozen=True)
class Fault:
    """Trouble of the first `share` of the replicas, from `start_s` to `end_s`."""

    trouble: Trouble
    share: float
    start_s: float
    end_s: float = float("inf")
    slowness: float = 1.0
    """Factor on every batch's time, if the trouble is SLOW."""


@dataclass(frozen=True)
class Balancing:
    """Load balancers in front of the replicas."""

    policy: Policy = Policy.LEAST_OUTSTANDING
    balancers: int = 1
    """Number of balancers; each knows only the requests that it has sent itself."""

    found_after_s: float | None = 1.5
    """Time until health checks take a replica out of the rotation; None: there are none."""

    back_after_s: float = 0.5
    """Time until they take it back."""

    redispatches: int = 0
    """Further replicas asked at once after a 503 or a failed connection."""


@dataclass(frozen=True)
class Autoscaling:
    """Controller that adds replicas, like Kubernetes' horizontal autoscaler; it removes none."""

    target: float
    """Requests in flight at a replica, to which the number of replicas is fitted. The busy share of
    workers would not do: workers that batch are busy long before they reach their limit.
    """

    start_s: float
    """Time from the decision to a ready replica."""

    interval_s: float = 15.0


@dataclass(frozen=True)
class Plan:
    """One simulated run."""

    service: Service
    replicas: int
    load: float
    """Requests a second, as a share of what all replicas can answer."""

    seconds: float
    warm_up_s: float = 0.0
    """Requests that start earlier do not count."""

    surge: tuple[float, float, float] | None = None
    """From, to, and factor on the load between them."""

    retries: Retries = field(default_factory=Retries)
    balancing: Balancing = field(default_factory=Balancing)
    faults: tuple[Fault, ...] = ()
    autoscaling: Autoscaling | None = None
    seed: int = 1

    @cached_property
    def rate(self) -> float:
        """Requests a second outside the surge."""
        return self.load * self.replicas * self.service.capacity

    def rate_at(self, now: float) -> float:
        """Returns the requests a second at a time."""
        if self.surge and self.surge[0] <= now < self.surge[1]:
            return self.rate * self.surge[2]
        return self.rate
