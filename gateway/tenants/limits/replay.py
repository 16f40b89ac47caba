"""What limits would have done with requests of the past. Pure.

An approximation: each limit is replayed alone, a request is refused or used in full when it begins, and a
client that is refused does not come again.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from gateway.tenants.limits.allowances import UNITS, allowance
from gateway.tenants.limits.needs import Used
from gateway.tenants.limits.periods import ROLLING, period_of
from gateway.tenants.terms import Level, LimitRule, Window

_SLOTS: Final = 30
"""What was used of a rolling window comes back in as many steps."""
_MINUTE: Final = 60_000_000


class PastRequest(NamedTuple):
    """One attempt that was billed."""

    began: int
    """Unix microseconds."""
    ended: int
    key: str
    adapter: str
    user: str
    tag: str
    used: Used
    """No request, if it continued another attempt."""


class _State(Protocol):
    """What one limit knows of one consumer."""

    def admits(self, request: PastRequest) -> bool:
        """Count a request, unless it is refused. They come by the time at which they began."""


class _Concurrent:
    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._ends: list[int] = []

    def admits(self, request: PastRequest) -> bool:
        while self._ends and self._ends[0] <= request.began:
            heapq.heappop(self._ends)
        if len(self._ends) >= self._slots and request.used[0]:
            return False
        heapq.heappush(self._ends, request.ended)
        return True


class _Rate:
    def __init__(self, unit: int, limit: int) -> None:
        self._unit, self._limit = unit, limit
        self._level = limit * _MINUTE  # in parts that one microsecond refills
        self._since = 0

    def admits(self, request: PastRequest) -> bool:
        refilled = self._level + (request.began - self._since) * self._limit
        self._level, self._since = min(refilled, self._limit * _MINUTE), request.began
        need = request.used[self._unit]
        if self._level < min(need, self._limit) * _MINUTE and request.used[0]:
            return False
        self._level -= need * _MINUTE
        return True


class _Period:
    def __init__(self, unit: int, limit: int, window: Window, timezone: str) -> None:
        self._unit, self._limit, self._window, self._timezone = unit, limit, window, timezone
        self._used = self._end = 0

    def admits(self, request: PastRequest) -> bool:
        if request.began >= self._end:
            self._used, self._end = 0, period_of(self._window, request.began, self._timezone)[1]
        if self._used >= self._limit and request.used[0]:
            return False
        self._used += request.used[self._unit]
        return True


class _Rolling:
    def __init__(self, unit: int, limit: int, window: Window) -> None:
        self._unit, self._limit = unit, limit
        self._slot = ROLLING[window] // _SLOTS
        self._used = 0
        self._slots: deque[list[int]] = deque()
        """The number of each slot in which something was used, and how much."""

    def admits(self, request: PastRequest) -> bool:
        slot = request.began // self._slot
        while self._slots and self._slots[0][0] < slot - _SLOTS:
            self._used -= self._slots.popleft()[1]
        if self._used >= self._limit and request.used[0]:
            return False
        if not self._slots or self._slots[-1][0] != slot:
            self._slots.append([slot, 0])
        self._slots[-1][1] += request.used[self._unit]
        self._used += request.used[self._unit]
        return True


_IDENTITIES: Final[dict[Level | None, Callable[[PastRequest], str]]] = {
    Level.KEY: lambda request: request.key,
    Level.ADAPTER: lambda request: request.adapter,
    Level.USER: lambda request: request.user,
    Level.TAG: lambda request: request.tag,
}


class Replay:
    """One limit of a tenant, and what it would have done so far. Mutable."""

    def __init__(self, rule: LimitRule, tenant: str, timezone: str) -> None:
        """Raises ValueError for a limit of sessions, which no record names."""
        if rule.window is Window.SESSION:
            raise ValueError(f"{rule}: usage records do not name sessions")
        self.rule = rule
        self._identity = _IDENTITIES.get(rule.level)
        short = rule.level is Level.ADAPTER and rule.name and "/" not in rule.name
        self._name = f"{tenant}/{rule.name}" if short else rule.name
        self._timezone = timezone
        self._states: dict[str, _State] = {}
        self.requests = 0
        """Those that it counts."""
        self.refused: Counter[str] = Counter()
        """By key, adapter, end user or tag; the empty name has those of a limit of all together."""

    @property
    def consumers(self) -> int:
        return len(self._states)

    def add(self, request: PastRequest) -> None:
        """Requests have to come by the time at which they began."""
        identity = self._identity(request) if self._identity else ""
        if self._identity and (not identity or (self._name and identity != self._name)):
            return
        state = self._states.get(identity)
        if state is None:
            state = self._states[identity] = self._state()
        self.requests += request.used[0]
        if not state.admits(request):
            self.refused[identity] += 1

    def _state(self) -> _State:
        terms = allowance([self.rule], self._timezone, 100)
        if not terms.counters:
            return _Concurrent(terms.slots)
        [counter] = terms.counters
        unit = UNITS[counter.measure]
        if counter.is_rate:
            return _Rate(unit, counter.limit)
        if counter.window in ROLLING:
            return _Rolling(unit, counter.limit, counter.window)
        return _Period(unit, counter.limit, counter.window, self._timezone)
