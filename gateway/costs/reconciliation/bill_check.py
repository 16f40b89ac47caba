"""Compares GPU-hours and cost on the provider's bill with those that Florin observed. Pure.

In each account (see `bill_accounts`), the hours of a bill line are matched with the hours of its period:
first where an engine was up, then with reserved capacity that no engine used, then the rest of those hours,
then hours in which none was up. What remains
splits into differences, each with its hours, that sum exactly to the total difference. The same holds for the
cost: hours are valued at the price book's rate, and deviations become differences of rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from gateway.costs.commitments.commitment import UnusedCapacity
from gateway.costs.periods import Period
from gateway.costs.reconciliation.bill_accounts import Ours, Side, hours_of, sides
from gateway.costs.reconciliation.bill_differences import KINDS, BillAccount, BillDifference
from gateway.costs.reconciliation.bill_files import BillLine
from gateway.units import FEMTO, HOUR, NANO

MINUTE = NANO // 60
"""A GPU-minute in nano-GPU-hours."""
HALF_A_CENT = Fraction(5, 1000)

RateAt = Callable[[str, str, str, int], int | None]
"""GPU type, region, purchase model, time → millionths of the currency per GPU-hour."""


@dataclass(slots=True)
class _Sum:
    """Mutable while an account is computed."""

    nano: int = 0
    cost: Fraction = Fraction(0)
    hours: set[int] = field(default_factory=set)


def check_bill(
    bill: Iterable[BillLine],
    ours: Sequence[Ours],
    known: frozenset[str],
    rate_at: RateAt,
    currency: str | None,
    within: Period,
    *,
    unused: UnusedCapacity | None = None,
) -> list[BillAccount]:
    """`within`: a period of whole hours. `currency`: of the price book. `unused`: what commitments pay for
    and no engine used. For the others, see `sides`."""
    unused = unused or UnusedCapacity()
    return [_Layout(side, rate_at, currency, unused).result() for side in sides(bill, ours, known, within)]


class _Layout:
    """Assigns the lines of one account to its hours. Mutable until `result`."""

    def __init__(self, account: Side, rate_at: RateAt, currency: str | None, unused: UnusedCapacity) -> None:
        self._account = account
        self._unused = unused
        self._rate_at = rate_at
        self._currency = currency
        self._left: dict[int, int] = {}
        """Hour → provisioned nano-GPU-hours that no line covers yet."""
        self._up: dict[int, Ours] = {}
        most: dict[str, int] = {}
        for own in account.ours:
            most[own.engine] = max(most.get(own.engine, 0), own.gpu_count)
            for hour, nano in own.hours.items():
                self._left[hour] = self._left.get(hour, 0) + nano
                self._up[hour] = own
        self._gpus = sum(most.values())
        self._covered: set[int] = set()
        self._laid: dict[int, int] = {}
        """Hour → nano-GPU-hours assigned to it so far: never more than its GPUs have."""
        self._sums: dict[str, _Sum] = {}
        self._other: dict[str, Fraction] = {}
        self._billed_cost = Fraction(0)

    def result(self) -> BillAccount:
        account = self._account
        provisioned = sum(self._left.values())
        for line in account.lines:
            self._take(line)
        self._leftover()
        billed = sum(line.nano_gpu_hours for line in account.lines)
        own_cost = Fraction(sum(own.cost for own in account.ours), FEMTO)
        rest = self._billed_cost - own_cost - sum((s.cost for s in self._sums.values()), Fraction(0))
        if rest:
            self._add("remaining", 0, rest)
        return BillAccount(
            account.name,
            *account.series,
            billed_nano=billed,
            provisioned_nano=provisioned,
            attributed_nano=sum(own.attributed for own in account.ours),
            billed_cost=self._billed_cost,
            own_cost=own_cost,
            other_currencies=self._other,
            differences=tuple(
                BillDifference(
                    kind, s.nano, s.cost, len(s.hours), min(s.hours, default=None), max(s.hours, default=None)
                )
                for kind, s in sorted(self._sums.items(), key=lambda item: list(KINDS).index(item[0]))
                if s.nano or s.cost
            ),
        )

    def _take(self, line: BillLine) -> None:
        cost = Fraction(line.cost)
        foreign = self._currency is not None and line.currency != self._currency
        if foreign:
            self._other[line.currency] = self._other.get(line.currency, Fraction(0)) + cost
            cost = Fraction(0)
        self._billed_cost += cost
        if line.nano_gpu_hours <= 0:
            self._add(_without_time(line), line.nano_gpu_hours, cost)
            return
        if self._account.known:
            value, priced = self._lay(line)
        else:
            nano, value = self._lay_reserved(line, line.nano_gpu_hours)
            if not nano or nano < line.nano_gpu_hours:
                self._add("never_registered", line.nano_gpu_hours - nano, cost - value, hours_of(line))
                return
            priced = True
        odd = cost - value
        if not odd:
            return
        if foreign:
            kind = "other_currency"
        elif not priced:
            kind = "no_price"
        else:
            kind = "cost_rounding" if abs(odd) <= HALF_A_CENT else "rate"
        self._add(kind, 0, odd)

    def _lay(self, line: BillLine) -> tuple[Fraction, bool]:
        """Assign the line's hours. Returns their value by the price book, and whether all had a price."""
        want = line.nano_gpu_hours
        room = {hour: self._room(line, hour) for hour in hours_of(line)}
        value, priced = Fraction(0), True
        for kind, hour in self._places(line):
            if want <= 0:
                break
            if kind == "reserved_unused":
                nano, worth = self._lay_reserved(line, want)
                want, value = want - nano, value + worth
                continue
            limit = min(room[hour], self._left.get(hour, 0)) if kind == "" else room[hour]
            nano = min(want, limit)
            if nano <= 0:
                continue
            want -= nano
            room[hour] -= nano
            self._laid[hour] = self._laid.get(hour, 0) + nano
            worth, known = self._value(hour, nano)
            value, priced = value + worth, priced and known
            if kind == "":
                self._left[hour] -= nano
            else:
                small = kind == "partly_up" and nano < MINUTE * max(self._gpus, 1)
                self._add("rounding" if small else kind, nano, worth, [hour])
        if want > 0:
            worth, known = self._value(line.start - line.start % HOUR, want)
            value, priced = value + worth, priced and known
            self._add("more_than_time", want, worth)
        self._covered.update(hours_of(line))
        return value, priced

    def _lay_reserved(self, line: BillLine, want: int) -> tuple[int, Fraction]:
        """Assign at most `want` to reserved capacity that no engine used. Returns what was assigned, and its
        value at the commitments' rates."""
        if line.purchase != "reserved":
            return 0, Fraction(0)
        done, value = 0, Fraction(0)
        for hour in hours_of(line):
            for nano, rate in self._unused.take(line.gpu_type, line.region, hour, want - done):
                worth = Fraction(nano * rate, FEMTO)
                done, value = done + nano, value + worth
                self._add("reserved_unused", nano, worth, [hour])
        return done, value

    def _places(self, line: BillLine) -> Iterator[tuple[str, int]]:
        """Hours it can be assigned to, most likely first, each with the kind of difference; empty: none.
        `reserved_unused` stands for all hours."""
        hours = hours_of(line)
        yield from (("", hour) for hour in hours if hour in self._up)
        if line.purchase == "reserved":
            yield "reserved_unused", hours.start
        yield from (("partly_up", hour) for hour in hours if hour in self._up)
        yield from (("down", hour) for hour in hours if hour not in self._up)

    def _room(self, line: BillLine, hour: int) -> int:
        """Nano-GPU-hours that a line can have in an hour, rounded up so that no time is lost. The number of
        GPUs of an engine that was never up is unknown, so its hours are spread evenly."""
        inside = min(line.end, hour + HOUR) - max(line.start, hour)
        if not self._gpus:
            return -(-inside * line.nano_gpu_hours // (line.end - line.start))
        most = -(-inside * self._gpus * NANO // HOUR)
        return min(most, self._gpus * NANO - self._laid.get(hour, 0))

    def _leftover(self) -> None:
        """Provisioned time that no line covers."""
        for hour, nano in sorted(self._left.items()):
            if not nano:
                continue
            if hour not in self._covered:
                kind = "not_billed"
            else:
                kind = "rounding" if nano < MINUTE * self._gpus else "billed_less"
            self._add(kind, -nano, -self._value(hour, nano)[0], [hour])

    def _value(self, hour: int, nano: int) -> tuple[Fraction, bool]:
        """The value of GPU time in an hour by the price book; 0 without a price."""
        own = self._up.get(hour) or (self._account.ours[-1] if self._account.ours else None)
        series = (own.gpu_type, own.region, own.purchase) if own else self._account.series
        rate = self._rate_at(*series, hour)
        return (Fraction(nano * rate, FEMTO), True) if rate is not None else (Fraction(0), False)

    def _add(self, kind: str, nano: int, cost: Fraction, hours: Iterable[int] = ()) -> None:
        sum_of_kind = self._sums.setdefault(kind, _Sum())
        sum_of_kind.nano += nano
        sum_of_kind.cost += cost
        sum_of_kind.hours.update(hours)


def _without_time(line: BillLine) -> str:
    """The kind of a line that has no GPU time, or takes some back."""
    if line.nano_gpu_hours:
        return "taken_back"
    return "other_charges" if line.category == "usage" else line.category
