"""How much of the work may be done again: one budget over all requests of a worker. Pure, with a clock.

Attempts are bounded for each request too, but three attempts for each request of a sick fleet would be
three times the load, at the moment when it can bear it least. So, as in Finagle and Envoy: retries may be a
share of the requests of the last seconds, and a few a second beside them, so that a quiet worker can retry
at all.

What is counted:

- An attempt that failed although its engine lives (a 5xx, a malformed answer, a broken connection) costs one.
  When the budget is used up, the request fails at once: the client hears how long to wait.
- Attempts that one engine's death took with it cost one **together**, and are never refused. A death happens
  once, whatever was in flight: two hundred requests that go elsewhere at once are no sick fleet, but the
  promise that one engine's death costs no request. What a death may cost is bounded elsewhere: no request
  survives a second one (see `suspects`).
- Detours cost nothing: an engine that refuses a connection, is busy, or does not know the model has done no
  work. They are bounded for each request, with growing pauses.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW = 10
"""Seconds that are looked back on."""
LEAST_PER_SECOND = 10.0
"""Retries beside the share: Finagle's and Linkerd's default."""


class RetryBudget:
    """Mutable: counts of the last WINDOW seconds, one entry for each that had any."""

    def __init__(
        self,
        share: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        least_per_second: float = LEAST_PER_SECOND,
    ) -> None:
        self._share = share
        self._least = least_per_second * WINDOW
        self._clock = clock
        self._seconds: deque[list[int]] = deque()
        """[second, requests, retries], oldest first."""

    def __repr__(self) -> str:
        return f"<RetryBudget {self._room():.1f} left>"

    def reconfigure(self, share: float) -> None:
        self._share = share

    def request(self) -> None:
        """A request came."""
        self._now()[1] += 1

    def charge(self) -> None:
        """A retry that is not asked about."""
        self._now()[2] += 1

    def allows(self) -> bool:
        """Whether one more may be made; if so, it is counted."""
        if self._room() < 1:
            return False
        self.charge()
        return True

    def wait(self) -> int:
        """Whole seconds until one more may be made, if no other request came meanwhile."""
        now, gone = int(self._clock()), 0.0
        room = self._room()
        for second, requests, retries in self._seconds:
            if room + gone >= 1:
                break
            gone += retries - self._share * requests
            last = second
        else:
            return WINDOW
        return max(1, last + WINDOW - now) if gone else 1

    def _room(self) -> float:
        self._now()
        requests = sum(entry[1] for entry in self._seconds)
        retries = sum(entry[2] for entry in self._seconds)
        return self._least + self._share * requests - retries

    def _now(self) -> list[int]:
        """The entry of this second."""
        now = int(self._clock())
        seconds = self._seconds
        if seconds and seconds[-1][0] >= now:
            return seconds[-1]
        while seconds and seconds[0][0] <= now - WINDOW:
            seconds.popleft()
        entry = [now, 0, 0]
        seconds.append(entry)
        return entry
