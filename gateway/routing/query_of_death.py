"""Queries of death: which requests were there when engines died, and which are sent no more. Pure.

One request that crashes an engine must not go through the fleet, retry by retry. One death does not tell a
killer from its neighbours: whatever was in flight on the engine is suspected, and most of it is innocent. So
suspicion counts up with deaths and ends with an answer:

- **A request**, known by its fingerprint, that was there at two deaths is refused for 1 minute, the next
  time for 2, 4, … up to 15. An engine's answer to it proves its innocence and clears it. But a request that
  was there at four deaths within half an hour, with fewer than ten answers between two of them, is refused
  all the same: some kill only in company.
- **A group**, a tenant's use of one adapter, for those who never send the same request twice. A death counts
  for it as long as one of the requests that it had there, unanswered, has been answered nowhere since. At
  three such deaths within ten minutes the group is refused for half a minute, the next time for 1, 2, … up to
  15. Requests whose answer had begun cannot be tried again, and a busy tenant has some everywhere: they count
  for the group only where it was alone on the engine.

So one request takes down at most 2 engines, and one tenant with one adapter at most 3 with ever new requests,
or as many as had such requests in flight at the moment of the first death; after that, one more each time
that a refusal has ended.

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
"""Answered between or not."""
ENOUGH_ANSWERS = 10
"""After so many answers since its last death, what a request has met before is forgotten."""
GROUP_DEATHS = 3
WINDOW = 600.0
"""Seconds in which a group's deaths count."""
FRESH = 60.0
"""Seconds after a death in which a group's requests are kept apart from other suspects."""
FORGET = 1800.0
SAME_DEATH = 5.0
"""Seconds in which several workers find the same engine dead."""
FIRST_REFUSAL, FIRST_GROUP_REFUSAL, LONGEST_REFUSAL = 60.0, 30.0, 900.0
MOST = 10_000
"""Fingerprints, and groups, that are remembered."""
MOST_DEATHS = 64
"""Of one group."""

Group = tuple[str, str]
"""Tenant, and full name of the adapter (empty: the base model)."""


@dataclass(frozen=True, slots=True)
class Witness:
    """One request that was on an engine when it died, or had just failed there."""

    fingerprint: str
    group: Group
    begun: bool
    """Its answer had begun."""


@dataclass(slots=True)
class _Record:
    """What is held against one fingerprint or one group. Times are the clock's."""

    last: float
    refusals: int = 0
    until: float = -math.inf
    """It is refused until then."""

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
    """Fingerprints that have not been answered since."""


@dataclass(slots=True)
class _Group(_Record):
    deaths: list[_Death] = field(default_factory=list)

    def counted(self, now: float, window: float) -> int:
        return sum(1 for death in self.deaths if now - death.at < window)


@dataclass(slots=True)
class _Found:
    """The last death of one engine, as several workers tell of it."""

    at: float
    reporters: set[str]
    requests: set[str] = field(default_factory=set)
    groups: dict[Group, _Death] = field(default_factory=dict)


class Suspects:
    """Mutable: what is held against whom. The least recently suspected are forgotten first."""

    def __init__(
        self, clock: Callable[[], float], *, most: int = REQUEST_DEATHS, same: float = SAME_DEATH
    ) -> None:
        """`most`: deaths at which a request is refused. `same`: seconds in which several workers find the
        same engine dead."""
        self._clock = clock
        self._most = most
        self._same = same
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        self._groups: OrderedDict[Group, _Group] = OrderedDict()
        self._known: Counter[Group] = Counter()
        """How many of each group's requests are remembered."""
        self._found: dict[str, _Found] = {}

    def __repr__(self) -> str:
        return f"<Suspects {len(self._requests)} requests, {len(self._groups)} groups>"

    # -- what happens

    def death(
        self, engine: str, reporter: str, witnesses: Iterable[Witness], *, ago: float = 0.0
    ) -> set[Group]:
        """An engine died so many seconds ago. Returns the groups for which that is one more death.

        What several reporters say of one engine within SAME_DEATH seconds is one death."""
        now = self._clock()
        self._forget(now)
        at = now - ago
        found = self._found.get(engine)
        if found is None or reporter in found.reporters or abs(at - found.at) > self._same:
            found = self._found[engine] = _Found(at, set())
        found.reporters.add(reporter)
        everyone = list(witnesses)
        alone = len({each.group for each in everyone} | found.groups.keys()) == 1
        counted = set[Group]()
        for each in everyone:
            if each.fingerprint not in found.requests:
                found.requests.add(each.fingerprint)
                self._suspect(each, at)
            if each.begun and not alone:
                continue
            if each.group not in found.groups:
                counted.add(each.group)
                found.groups[each.group] = self._suspect_group(each.group, at)
            found.groups[each.group].open.add(each.fingerprint)
        for group in counted:
            self._judge(group, at)
        return counted

    def answered(self, fingerprint: str, group: Group, *, ago: float = 0.0) -> bool:
        """An engine has answered the request, so it did not die of it. Whether that changed anything."""
        at = self._clock() - ago
        changed = self._clear(fingerprint, at)
        record = self._groups.get(group)
        if record is None:
            return changed
        for death in record.deaths:
            if fingerprint in death.open and death.at <= at:
                death.open.discard(fingerprint)
                changed = True
        record.deaths = [death for death in record.deaths if death.open]
        if record.counted(at, WINDOW) < GROUP_DEATHS:
            record.until = -math.inf
        if not record.deaths and not record.refusals:
            del self._groups[group]
        return changed

    # -- what is asked

    @property
    def any(self) -> bool:
        """Whether anything is held against anybody: while not, nothing need be asked."""
        return bool(self._known) or bool(self._groups)

    def refused(self, fingerprint: str) -> float:
        """Seconds for which this request is refused still; 0: it is not."""
        request = self._requests.get(fingerprint)
        return max(0.0, request.until - self._clock()) if request else 0.0

    def group_refused(self, group: Group) -> float:
        record = self._groups.get(group)
        return max(0.0, record.until - self._clock()) if record else 0.0

    def suspected(self, group: Group) -> bool:
        """Whether it had a part in a death of late, and has not been cleared."""
        record = self._groups.get(group)
        return record is not None and record.counted(self._clock(), FRESH) > 0

    def known(self, group: Group) -> bool:
        """Whether anything is held against it or one of its requests."""
        return group in self._known or group in self._groups

    def refusals(self) -> dict[Group, tuple[int, float]]:
        """Groups that are refused now: their deaths that count, and the seconds left."""
        now = self._clock()
        return {
            group: (record.counted(now, WINDOW), record.until - now)
            for group, record in self._groups.items()
            if record.until > now
        }

    # -- steps

    def _suspect(self, witness: Witness, at: float) -> None:
        request = self._requests.pop(witness.fingerprint, None)
        if request is None:
            request = _Request(at, group=witness.group)
            self._known[witness.group] += 1
        self._requests[witness.fingerprint] = request
        request.last = max(request.last, at)
        request.deaths += 1
        request.in_all += 1
        request.answers = 0
        if request.deaths >= self._most or request.in_all >= REQUEST_DEATHS_IN_ALL:
            request.refuse(at, FIRST_REFUSAL)
        if len(self._requests) > MOST:
            self._drop_request(next(iter(self._requests)))

    def _clear(self, fingerprint: str, at: float) -> bool:
        request = self._requests.get(fingerprint)
        if request is None or request.last > at:
            return False
        changed, request.deaths = request.deaths > 0, 0
        request.answers += 1
        if request.answers >= ENOUGH_ANSWERS:
            self._drop_request(fingerprint)
        elif request.in_all < REQUEST_DEATHS_IN_ALL:
            request.until = -math.inf
        return changed

    def _drop_request(self, fingerprint: str) -> None:
        request = self._requests.pop(fingerprint)
        self._known[request.group] -= 1
        if not self._known[request.group]:
            del self._known[request.group]

    def _suspect_group(self, group: Group, at: float) -> _Death:
        record = self._groups.pop(group, None) or _Group(at)
        self._groups[group] = record
        record.last = max(record.last, at)
        death = _Death(at)
        record.deaths = [*record.deaths, death][-MOST_DEATHS:]
        if len(self._groups) > MOST:
            self._groups.popitem(last=False)
        return death

    def _judge(self, group: Group, at: float) -> None:
        record = self._groups.get(group)
        if record is not None and record.counted(at, WINDOW) >= GROUP_DEATHS:
            record.refuse(at, FIRST_GROUP_REFUSAL)

    def _forget(self, now: float) -> None:
        """Those that were suspected longest ago come first."""
        while self._requests and _over(next(iter(self._requests.values())), now):
            self._drop_request(next(iter(self._requests)))
        while self._groups and _over(next(iter(self._groups.values())), now):
            self._groups.popitem(last=False)
        for engine in [e for e, found in self._found.items() if now - found.at > FORGET]:
            del self._found[engine]


def _over(record: _Record, now: float) -> bool:
    return now - record.last > FORGET and record.until <= now
