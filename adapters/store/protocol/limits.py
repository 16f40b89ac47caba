"""Limits over all workers: counters in the store, of which workers lease shares.

A subject is whatever is limited: a tenant, a key, an end user. It has flows, one for each thing that is
counted in a window, and a number of slots (concurrent requests). A flow is of one of three kinds:

- a rate is a token bucket that holds its limit and refills within its window, continuously;
- a period's budget begins anew at each of its starts, which the worker names, since it knows the calendar;
- a rolling budget is what was used within the window until now, in steps of a thirtieth of it.

A worker takes a share of each flow before it needs it, spends it without asking, and gives back what it does
not need. A share is counted as used from the moment it is granted.

Promises, held by tests/contract and tests/property:
- In any interval of t ms, a rate grants at most its limit x (1 + t / window), and what was given back. What
  workers report to have spent beyond their shares is taken from what would be granted next.
- A budget never grants more than its limit in its period, or within its rolling window. What workers report
  beyond their shares counts.
- A worker that reports nothing for its `ttl_ms` loses its slots to others. Its share of a rate refills with
  time; its share of a period's budget counts as used until `correct` says otherwise, and that of a rolling
  budget until the window has passed.
- Reports are cumulative, and calls are numbered: one whose reply was lost, or that arrives late or twice,
  counts once.
- A refused request gets a booking, unless there are MOST_BOOKINGS: from its time on, and for LAPSE_MS, a
  request with the same digest is granted what it needs of the rates, whatever others have asked meanwhile.
- A budget of which the store knows nothing grants nothing until `seed` says what has been used. Usage belongs
  to the period in which it is reported.
- Subjects of a family begin at zero instead, are forgotten as soon as nothing of them counts any more, and
  are at most so many at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

Amounts = tuple[int, ...]
"""One amount for each flow of a report. Money is in billionths of the currency."""
UNLIMITED: Final = -1
UNKNOWN: Final = -1
"""Used of a budget that was not seeded yet."""
MOST_BOOKINGS: Final = 128
"""Per subject."""
LAPSE_MS: Final = 6_000
"""How long after its time a booking is kept: the client waits whole seconds, and then for the network."""
NEAR_PARTS: Final = 10
NEAR_REQUESTS: Final = 20
"""A budget is near its end if less than a tenth of it is left, or less than 20 times what this request may
cost at worst. From then on the worst case is reserved."""
DAYS_REFUSED: Final = 32
SLICES: Final = 30
"""Steps of a rolling window: what was used counts for the window, and for at most one step more."""


class Kind(IntEnum):
    RATE = 0
    PERIOD = 1
    ROLLING = 2


@dataclass(frozen=True, slots=True)
class Flow:
    """What one limit counts, of one subject."""

    name: str
    """The same name is the same counter."""
    kind: Kind
    window: tuple[int, ...]
    """The length in ms of a rate's and a rolling budget's; when the periods around now begin, for one of a
    period: Unix ms, ascending. The store takes the last one that has begun by its own clock."""


class Verdict(IntEnum):
    GRANTED = 0
    SLOTS = 1
    """All slots are in use."""
    BUDGET = 2
    RATE = 3
    UNSEEDED = 4
    """A budget's use is unknown: `seed` it."""
    STALE = 5
    """A later call of this worker was already answered; this one had no effect."""
    CROWDED = 6
    """The family has as many subjects as it may; this one would be new. The call had no effect."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one worker says of one subject, and wants. Amounts that are left out are zeros."""

    subject: str
    flows: tuple[Flow, ...]
    limits: Amounts
    slots: int
    """Limit of concurrent requests, or UNLIMITED."""
    number: int
    """Ascends with this worker's calls about the subject."""
    heard: Amounts
    """The last `granted` that the worker received. It counts only if the store has forgotten the worker."""
    granted: Amounts
    """The same, less what the worker gives back."""
    spent: Amounts
    """Cumulative, like `granted`; more than that is debt."""
    running: int = 0
    """Requests of this worker in flight."""
    held: int = 0
    """Slots that it keeps, those of running requests included."""
    need: Amounts = ()
    """What a waiting request needs: all of it or nothing is granted."""
    worst: Amounts = ()
    """Reserved instead of `need` from budgets that are near their ends. If less is left, and nothing else is
    reserved, what is left."""
    need_slots: int = 0
    more: Amounts = ()
    """What the worker would like besides, for requests to come."""
    more_slots: int = 0
    family: str = ""
    """The family of subjects to which it belongs; empty: to none."""
    most: int = 0
    """Subjects that the family may have at a time."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a subject looks like after a call. Amounts are in the order of the report's flows."""

    granted: Amounts
    """Cumulative, to this worker."""
    held: int
    """Slots of this worker."""
    used: Amounts
    """What is used, shares included: of a rate, what a full bucket has more, rounded up; of a budget, UNKNOWN
    if it was not seeded."""
    booked: Amounts
    """How much of that is only reserved by bookings of a rate."""
    shared: Amounts
    """How much of a budget's is in workers' unspent shares."""
    lapsed: Amounts
    """How much of a budget's is of workers that fell silent."""
    running: int
    """Requests in flight over all workers."""
    idle_slots: int
    """Slots that other workers hold without a request."""
    wanted: bool
    """Somebody lacks a slot: give back those that are not needed."""
    due: tuple[str, ...]
    """Digests of bookings whose time has come, or comes within a second."""


@dataclass(frozen=True, slots=True)
class Answer:
    verdict: Verdict
    subject: int = 0
    """Which report's limit refused."""
    flow: int = 0
    """Which of its flows refused."""
    wait_ms: int = 0
    """RATE: when to come back."""
    booked: bool = False
    """RATE: whether a booking was made."""
    reserved: tuple[Amounts, ...] = ()
    """GRANTED: granted to each report's `need`; more or less than that if a budget is near its end."""
    shares: tuple[Share, ...] = ()
    """One for each report."""


class LimitStore(Protocol):
    """Every method raises StoreUnavailableError if the server cannot be reached in time."""

    async def lease(
        self,
        worker: str,
        reports: Sequence[Report],
        *,
        ttl_ms: int,
        digest: str = "",
        again: bool = False,
    ) -> Answer:
        """Report use, and get shares. The needs of all reports are granted together or not at all.

        `digest` identifies a request, for bookings; empty: none is made. `again`: the client says that it
        sends the request again, so a booking of it that is not due yet stays the only one."""
        ...

    async def seed(self, subject: str, flows: Sequence[Flow], used: Sequence[int]) -> None:
        """Say how much of each budget was used until now. No effect on those that are known."""
        ...

    async def correct(self, subject: str, flow: Flow, period: int, more: int, *, settled: int) -> None:
        """Add to what was used of a budget; negative: subtract. If it is a period's, only if the present one
        began at `period`. `settled`: of what silent workers held, so much is now accounted for."""
        ...

    async def looks(self, subjects: Sequence[tuple[str, Sequence[Flow], Amounts]]) -> list[Share]:
        """What each subject with these flows and limits looks like, without any change."""
        ...

    async def add_refused(self, day: int, refused: Mapping[str, Mapping[str, int]]) -> None:
        """Count what limits in shadow would have refused on a day (since 1970), by tenant and by limit. It is
        kept for DAYS_REFUSED."""
        ...

    async def refused(self, tenant: str, days: Sequence[int]) -> list[dict[str, int]]:
        """What they would have refused on each of these days, by limit."""
        ...

    async def claim_once(self, name: str, ttl_ms: int) -> bool:
        """Claim a name for a time. False if it is claimed already."""
        ...

    async def keep_claim(self, name: str, ttl_ms: int) -> None:
        """Change the time of a claim from now on; 0 gives it up."""
        ...


def begun(flow: Flow, ms: int) -> int:
    """When the period at that time began; of a rolling budget and a rate: 0."""
    if flow.kind is not Kind.PERIOD:
        return 0
    return max((start for start in flow.window if start <= ms), default=flow.window[0])
