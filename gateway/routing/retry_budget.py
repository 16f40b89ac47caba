"""The retry budget: limits retries over all requests of a worker. Pure, except for the clock.

The attempts of each request are limited, too, but three attempts per request would triple the load on a
failing fleet. So, as in Finagle and Envoy, retries may be a share of the requests in the last seconds, plus a
few per second, so that a quiet worker can retry at all.

What is counted:

- A retry after an attempt that failed on a live engine (a 5xx, a malformed response, a lost connection) costs
  one. If the budget is exhausted, the request fails at once with `retry-after`.
- Retries after an engine's death cost one **in total** and are never refused. Two hundred requests that move
  to other engines do not mean that the fleet is failing; they are the promise that one engine's death costs
  no request. The cost of deaths is limited elsewhere: no request survives a second one (see
  `query_of_death`).
- Detours are free: an engine that refuses a connection, is busy, or does not know the model has done no work.
  They are limited per request, with growing pauses.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW = 10
"""Seconds over which requests and retries are counted."""
LEAST_PER_SECOND = 10.0
"""Retries that are always allowed: the default of Finagle and Linkerd."""


class RetryBudget:
    """Mutable: counts of the last WINDOW seconds, one entry per second with any."""

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
        """Count a request."""
        self._now()[1] += 1

    def charge(self) -> None:
        """Count a retry that is made in any case."""
        self._now()[2] += 1

    def allows(self) -> bool:
        """Whether a retry may be made. If so, it is counted."""
        if self._room() < 1:
            return False
        self.charge()
        return True

    def wait(self) -> int:
        """Whole seconds until a retry may be made, if there are no further requests."""
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
