"""Queries of death: identifies requests that may kill engines, and blocks them. Pure.

A request that crashes an engine must not take down the fleet, retry by retry. A single death does not reveal
the cause: everything in flight on the engine is suspect, and most of it is innocent. So suspicion grows with
deaths and ends with an answer:

- **A request**, identified by its fingerprint, that was present at two deaths is blocked for 1 minute, the
  next time for 2, 4, … up to 15. An engine's answer to it clears it. But a request that was present at four
  deaths within half an hour, with fewer than ten answers between any two of them, is blocked all the same:
  some requests kill only in combination with others.
- **A group** is a tenant's use of one adapter, for clients that never send the same request twice. A death
  counts for a group as long as one of its unanswered requests there has not been answered since. At three
  such deaths within ten minutes, the group is blocked for half a minute, the next time for 1, 2, … up to 15.
  Requests whose answer had started cannot be retried, and a busy tenant has some on every engine, so they
  count for the group only if it was alone on the engine.

So one request kills at most 2 engines. One tenant with one adapter kills at most 3 with ever new requests, or
as many as had such requests in flight at the first death; after that, one more each time that a block ends.

Fingerprints are keyed hashes, groups are names. Both are forgotten half an hour after their last death, or
when there are too many.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

REQUEST_DEATHS = 2
REQUEST_DEATHS_IN_ALL = 4
"""Whether or not it was answered in between."""
ENOUGH_ANSWERS = 10
"""Answers since its last death after which a request's record is deleted."""
GROUP_DEATHS = 3
WINDOW = 600.0
"""Seconds for which a death counts for a group."""
FRESH = 60.0
"""Seconds after a death during which a group's requests are isolated from other suspects."""
FORGET = 1800.0
SAME_DEATH = 5.0
"""Seconds within which several workers detect the same death."""
FIRST_REFUSAL, FIRST_GROUP_REFUSAL, LONGEST_REFUSAL = 60.0, 30.0, 900.0
MOST = 10_000
"""Maximum number of fingerprints, and of groups, that are remembered."""
MOST_DEATHS = 64
"""Maximum number of deaths remembered per group."""

Group = tuple[str, str]
"""Tenant, and full name of the adapter (empty: the base model)."""


@dataclass(frozen=True, slots=True)
class SuspectRequest:
    """A request that was on an engine when it died, or had just failed there."""

    fingerprint: str
    group: Group
    begun: bool
    """Its answer had started."""


@dataclass(slots=True)
class _Record:
    """What is known against one fingerprint or one group. Times are the clock's."""

    last: float
    refusals: int = 0
    until: float = -math.inf
    """End of the block."""

    def refuse(self, now: float, first: float) -> None:
        self.until = now + min(LONGEST_REFUSAL, first * 2**self.refusals)
        self.refusals = min(self.refusals + 1, 20)


@dataclass(slots=True)
class _Request(_Record):
    group: Group = ("", "")
    deaths: int = 0
    """Since it was last answered."""
    in_all: int = 0
    answers: int = 0
    """Since its last death."""


@dataclass(slots=True)
class _Death:
    at: float
    open: set[str] = field(default_factory=set)
    """Fingerprints of the group's requests that have not been answered since."""


@dataclass(slots=True)
class _Group(_Record):
    deaths: list[_Death] = field(default_factory=list)

    def counted(self, now: float, window: float) -> int:
        return sum(1 for death in self.deaths if now - death.at < window)


@dataclass(slots=True)
class _EngineDeath:
    """The last death of one engine, merged from the reports of several workers."""

    at: float
    reporters: set[str]
    requests: set[str] = field(default_factory=set)
    groups: dict[Group, _Death] = field(default_factory=dict)


class Suspects:
    """Mutable: the records of all suspects. The least recently suspected are forgotten first."""

    def __init__(
        self, clock: Callable[[], float], *, most: int = REQUEST_DEATHS, same: float = SAME_DEATH
    ) -> None:
        """`most`: number of deaths at which a request is blocked. `same`: seconds within which several
        workers detect the same death."""
        self._clock = clock
        self._most = most
        self._same = same
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        self._groups: OrderedDict[Group, _Group] = OrderedDict()
        self._known: Counter[Group] = Counter()
        """Number of remembered requests of each group."""
        self._last_deaths: dict[str, _EngineDeath] = {}
        self.any = False
        """Whether there are any suspects. If not, callers can skip all queries."""

    def __repr__(self) -> str:
        return f"<Suspects {len(self._requests)} requests, {len(self._groups)} groups>"

    # -- events

    def death(
        self, engine: str, reporter: str, requests: Iterable[SuspectRequest], *, ago: float = 0.0
    ) -> set[Group]:
        """Record that an engine died `ago` seconds ago. Returns the groups for which it is a new death.

        Reports about one engine by several reporters within SAME_DEATH seconds are one death."""
        now = self._clock()
        self._forget(now)
        died_at = now - ago
        latest = self._last_deaths.get(engine)
        if latest is None or reporter in latest.reporters or abs(died_at - latest.at) > self._same:
            latest = self._last_deaths[engine] = _EngineDeath(died_at, set())
        latest.reporters.add(reporter)
        everyone = list(requests)
        alone = len({each.group for each in everyone} | latest.groups.keys()) == 1
        counted = set[Group]()
        for each in everyone:
            if each.fingerprint not in latest.requests:
                latest.requests.add(each.fingerprint)
                self._suspect(each, died_at)
            if each.begun and not alone:
                continue
            if each.group not in latest.groups:
                counted.add(each.group)
                latest.groups[each.group] = self._suspect_group(each.group, died_at)
            latest.groups[each.group].open.add(each.fingerprint)
        for group in counted:
            self._judge(group, died_at)
        self._note_any()
        return counted

    def answered(self, fingerprint: str, group: Group, *, ago: float = 0.0) -> bool:
        """Record that an engine has answered the request. Returns whether that cleared anything."""
        answered_at = self._clock() - ago
        changed = self._clear(fingerprint, answered_at)
        changed = self._clear_group(fingerprint, group, answered_at) or changed
        self._note_any()
        return changed

    # -- queries

    def refused(self, fingerprint: str) -> float:
        """Seconds for which this request remains blocked; 0: it is not blocked."""
        request = self._requests.get(fingerprint)
        return max(0.0, request.until - self._clock()) if request else 0.0

    def group_refused(self, group: Group) -> float:
        record = self._groups.get(group)
        return max(0.0, record.until - self._clock()) if record else 0.0

    def suspected(self, group: Group) -> bool:
        """Whether the group was involved in a recent death and has not been cleared."""
        record = self._groups.get(group)
        return record is not None and record.counted(self._clock(), FRESH) > 0

    def known(self, group: Group) -> bool:
        """Whether there is a record of the group or one of its requests."""
        return group in self._known or group in self._groups

    def refusals(self) -> dict[Group, tuple[int, float]]:
        """Blocked groups, each with its number of counted deaths and the seconds left."""
        now = self._clock()
        return {
            group: (record.counted(now, WINDOW), record.until - now)
            for group, record in self._groups.items()
            if record.until > now
        }

    # -- steps

    def _note_any(self) -> None:
        self.any = bool(self._known) or bool(self._groups)

    def _suspect(self, suspect: SuspectRequest, died_at: float) -> None:
        request = self._requests.pop(suspect.fingerprint, None)
        if request is None:
            request = _Request(died_at, group=suspect.group)
            self._known[suspect.group] += 1
        self._requests[suspect.fingerprint] = request
        request.last = max(request.last, died_at)
        request.deaths += 1
        request.in_all += 1
        request.answers = 0
        if request.deaths >= self._most or request.in_all >= REQUEST_DEATHS_IN_ALL:
            request.refuse(died_at, FIRST_REFUSAL)
        if len(self._requests) > MOST:
            self._drop_request(next(iter(self._requests)))

    def _clear(self, fingerprint: str, answered_at: float) -> bool:
        request = self._requests.get(fingerprint)
        if request is None or request.last > answered_at:
            return False
        changed, request.deaths = request.deaths > 0, 0
        request.answers += 1
        if request.answers >= ENOUGH_ANSWERS:
            self._drop_request(fingerprint)
        elif request.in_all < REQUEST_DEATHS_IN_ALL:
            request.until = -math.inf
        return changed

    def _clear_group(self, fingerprint: str, group: Group, answered_at: float) -> bool:
        record, changed = self._groups.get(group), False
        if record is None:
            return False
        for death in record.deaths:
            if fingerprint in death.open and death.at <= answered_at:
                death.open.discard(fingerprint)
                changed = True
        record.deaths = [death for death in record.deaths if death.open]
        if record.counted(answered_at, WINDOW) < GROUP_DEATHS:
            record.until = -math.inf
        if not record.deaths and not record.refusals:
            del self._groups[group]
        return changed

    def _drop_request(self, fingerprint: str) -> None:
        request = self._requests.pop(fingerprint)
        self._known[request.group] -= 1
        if not self._known[request.group]:
            del self._known[request.group]

    def _suspect_group(self, group: Group, died_at: float) -> _Death:
        record = self._groups.pop(group, None) or _Group(died_at)
        self._groups[group] = record
        record.last = max(record.last, died_at)
        death = _Death(died_at)
        record.deaths = [*record.deaths, death][-MOST_DEATHS:]
        if len(self._groups) > MOST:
            self._groups.popitem(last=False)
        return death

    def _judge(self, group: Group, died_at: float) -> None:
        record = self._groups.get(group)
        if record is not None and record.counted(died_at, WINDOW) >= GROUP_DEATHS:
            record.refuse(died_at, FIRST_GROUP_REFUSAL)

    def _forget(self, now: float) -> None:
        """Delete expired records. The oldest come first."""
        while self._requests and _over(next(iter(self._requests.values())), now):
            self._drop_request(next(iter(self._requests)))
        while self._groups and _over(next(iter(self._groups.values())), now):
            self._groups.popitem(last=False)
        for engine in [e for e, death in self._last_deaths.items() if now - death.at > FORGET]:
            del self._last_deaths[engine]


def _over(record: _Record, now: float) -> bool:
    return now - record.last > FORGET and record.until <= now
