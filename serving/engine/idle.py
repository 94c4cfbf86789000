"""Whether a picture that is alone in the service gets all cores, decided by measuring while serving.

All cores on one picture pay where they are idle, and cost where somebody else has them: both change
while a service runs. So a worker that has a session for either keeps the latest times of both, and now
and then tries the one that it does not prefer.
"""

from collections import deque

TIMES = 8  # kept of each; the shortest counts, which a short disturbance does not change
TRY_SOON, TRY_OTHER = 4, 128  # pictures between two trials of the other: more each time it loses again
WORTH_IT = 0.85  # of the time on fewer threads: the cores are somebody else's, too


class IdleCores:
    """One worker's times for a picture that is alone, on few threads and on all."""

    def __init__(self) -> None:
        self._few: deque[float] = deque(maxlen=TIMES)
        self._all: deque[float] = deque(maxlen=TIMES)
        self._preferred: bool | None = None
        self._between = self._left = TRY_SOON

    def pay(self) -> bool:
        """Whether the next picture that is alone is to be computed on all cores."""
        if len(self._all) < TIMES or len(self._few) < TIMES:
            return len(self._all) <= len(self._few)
        preferred = min(self._all) < WORTH_IT * min(self._few)
        if preferred is not self._preferred:
            self._preferred, self._between, self._left = preferred, TRY_SOON, TRY_SOON
        self._left -= 1
        if self._left:
            return preferred
        self._between = self._left = min(2 * self._between, TRY_OTHER)
        return not preferred

    def took(self, all_cores: bool, seconds: float) -> None:
        """Notes what the last one took."""
        (self._all if all_cores else self._few).append(seconds)
