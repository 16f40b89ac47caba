"""Limits and budgets over all workers: counters in the store, of which workers lease shares.

A subject is a tenant or a key. It has six flows and a number of slots (concurrent requests). Two flows are
rates, token buckets that hold a minute's limit and refill continuously; four are budgets of a UTC day or
month. A worker takes a share of each flow before it needs it, spends it without asking, and gives back what
it does not need. A share is counted as used from the moment it is granted.

Promises, held by tests/contract and tests/property:
- In any interval of t ms, a rate grants at most its limit x (1 + t / 60,000), and what was given back. What
  workers report to have spent beyond their shares is taken from what would be granted next.
- A budget never grants more than its limit in its period. What workers report beyond their shares counts.
- A worker that reports nothing for its `ttl_ms` loses its slots to others. Its share of a rate refills with
  time; its share of a budget counts as used until `correct` says otherwise.
- Reports are cumulative, and calls are numbered: one whose reply was lost, or that arrives late or twice,
  counts once.
- A refused request gets a booking, unless there are MOST_BOOKINGS: from its time on, and for LAPSE_MS, a
  request with the same digest is granted what it needs of the rates, whatever others have asked meanwhile.
- A budget of which the store knows nothing grants nothing until `seed` says what has been used. Usage belongs
  to the period in which it is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

MINUTE_MS: Final = 60_000
RATES: Final = 2
"""The first flows are rates, the others budgets."""
FLOWS: Final = 6
Amounts = tuple[int, int, int, int, int, int]
"""One amount for each flow, in the order of Flow. Money is in billionths of the currency."""
NOTHING: Final[Amounts] = (0, 0, 0, 0, 0, 0)
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


class Flow(IntEnum):
    REQUESTS = 0
    TOKENS = 1
    TOKENS_PER_DAY = 2
    TOKENS_PER_MONTH = 3
    MONEY_PER_DAY = 4
    MONEY_PER_MONTH = 5


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


@dataclass(frozen=True, slots=True)
class Report:
    """What one worker says of one subject, and wants."""

    subject: str
    limits: Amounts
    """UNLIMITED where there is none."""
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
    need: Amounts = NOTHING
    """What a waiting request needs: all of it or nothing is granted."""
    worst: Amounts = NOTHING
    """Reserved instead of `need` from budgets that are near their ends. If less is left, and nothing else is
    reserved, what is left."""
    need_slots: int = 0
    more: Amounts = NOTHING
    """What the worker would like besides, for requests to come."""
    more_slots: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What a subject looks like after a call."""

    granted: Amounts
    """Cumulative, to this worker."""
    held: int
    """Slots of this worker."""
    levels: tuple[int, int]
    """Units left of each rate, less than zero where bookings and debts wait. Rounded down."""
    booked: tuple[int, int]
    """How much of the rates is set aside by bookings, and missing in `levels`."""
    used: tuple[int, int, int, int]
    """What is used of each budget, shares included; UNKNOWN if not seeded."""
    shared: tuple[int, int, int, int]
    """How much of that is in workers' unspent shares."""
    lapsed: tuple[int, int, int, int]
    """How much of that is of workers that fell silent."""
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
    """Which flow refused."""
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

    async def seed(self, subject: str, used: Mapping[int, int]) -> None:
        """Say how much of budgets (by flow) was used in this period. No effect on those that are known."""
        ...

    async def correct(self, subject: str, flow: int, period: int, more: int, *, settled: int) -> None:
        """Add to what was used of a budget, if its period is still this one; negative: subtract. `settled`:
        of what silent workers held, so much is now accounted for."""
        ...

    async def looks(self, subjects: Sequence[tuple[str, Amounts]]) -> list[Share]:
        """What each subject with these limits looks like, without any change."""
        ...

    async def claim_once(self, name: str, ttl_ms: int) -> bool:
        """Claim a name for a time. False if it is claimed already."""
        ...

    async def keep_claim(self, name: str, ttl_ms: int) -> None:
        """Change the time of a claim from now on; 0 gives it up."""
        ...


def period_of(flow: int, ms: int) -> int:
    """The UTC day or month of a time: days since 1970, or months since the year 0."""
    day = ms // 86_400_000
    if flow in (Flow.TOKENS_PER_DAY, Flow.MONEY_PER_DAY):
        return day
    # Howard Hinnant, chrono-Compatible Low-Level Date Algorithms, civil_from_days.
    era, doe = divmod(day + 719_468, 146_097)
    yoe = (doe - doe // 1460 + doe // 36_524 - doe // 146_096) // 365
    month = (5 * (doe - (365 * yoe + yoe // 4 - yoe // 100)) + 2) // 153
    year = yoe + era * 400 + (month >= 10)
    return year * 12 + (month + 2 if month < 10 else month - 10)
