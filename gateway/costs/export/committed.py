"""Recorded commitments in FOCUS files: which engine time each covers, its purchase, and what no engine used.

As FOCUS has it, a commitment is billed when it is bought (by the hour, or upfront), and its effective cost is
spread over the hours that it pays for, used or not. So the engine time that it covers is billed nothing. The
effective cost of an hour is its rate and its share of the upfront payment; what engines used of the hour and
the unused rest have it in proportion. Amounts are whole units of 10**-15 of the currency, each the difference
of two sums that are rounded down, so that over the term they sum to the payments exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from sqlalchemy import Connection, select

from gateway.costs.commitments.commitment import Commitment, CommitmentUse, use
from gateway.costs.commitments.commitment_store import read_commitments
from gateway.costs.cost_lines import CostLine
from gateway.costs.export.charges import Charge, Covering
from gateway.costs.periods import Period, instant, month_of
from gateway.metering.ledger.schema import periods
from gateway.units import FEMTO, HOUR, NanoHours


@dataclass(frozen=True, slots=True)
class Committed:
    """The commitments of a month, and what became of them."""

    within: Period
    """The month, or the part of it that has postings."""
    uses: Sequence[CommitmentUse]


def committed(
    connection: Connection, month: str, lines: Callable[[], Iterable[CostLine]]
) -> Committed | None:
    """None without commitments in the month. `lines`: reads all that are posted to it, by hour
    first.

    Of a closed month: those that were recorded, and not withdrawn, when it was closed, so that its files
    never change. Of an open one: up to the last hour with postings."""
    period = month_of(month)
    query = select(periods.c.closed_at).where(periods.c.month == month, periods.c.state == "closed")
    closed_at = connection.execute(query).scalar_one_or_none()
    known = [
        commitment
        if closed_at is None or (commitment.withdrawn_at or 0) <= closed_at
        else replace(commitment, withdrawn_at=None)
        for commitment in read_commitments(connection)
        if commitment.valid_from < period.end and commitment.valid_to > period.start
        if closed_at is None or commitment.recorded_at <= closed_at
    ]
    if all(commitment.withdrawn_at is not None for commitment in known):
        return None
    usage: dict[tuple[str, str], dict[int, int]] = {}
    last = period.start
    for line in lines():
        if line.correction:
            continue
        hour = instant("hour", line.keys[0])
        last = max(last, hour + HOUR)
        if _is_reserved(line):
            hours = usage.setdefault((line.gpu_type, line.region), {})
            hours[hour] = hours.get(hour, 0) + line.nano_gpu_hours
    within = Period(period.start, period.end if closed_at is not None else min(last, period.end))
    return Committed(within, use(known, usage, within))


def _is_reserved(line: CostLine) -> bool:
    return line.purchase == "reserved" and line.nano_gpu_hours > 0 and not line.correction


def covered(charges: Iterable[Charge], uses: Sequence[CommitmentUse]) -> Iterator[Charge]:
    """The same charges by the hour, with what commitments cover set apart. Tokens and requests stay with the
    first part of a charge."""
    left = _left(uses)
    taken: dict[tuple[int, int], int] = {}
    for charge in charges:
        if not _is_reserved(charge.line):
            yield charge
            continue
        line, hour = charge.line, instant("hour", charge.line.keys[0])
        rest = line.nano_gpu_hours
        places = left.get((line.gpu_type, line.region, hour), {})
        for commitment, available in places.items():
            if not (nano := min(rest, available)):
                continue
            places[commitment] -= nano
            before = taken.get((commitment.id, hour), 0)
            taken[commitment.id, hour] = before + nano
            cost = effective(commitment, hour, before + nano) - effective(commitment, hour, before)
            covering = Covering(commitment.id, commitment.description, cost)
            yield replace(charge, line=replace(line, nano_gpu_hours=NanoHours(nano)), covering=covering)
            rest = NanoHours(rest - nano)
            line = _without_counts(line)
        if rest:
            yield replace(charge, line=replace(line, nano_gpu_hours=rest))


def _without_counts(line: CostLine) -> CostLine:
    return replace(
        line, requests=0, prompt_tokens=0, cached_tokens=0, completion_tokens=0, reasoning_tokens=0
    )


def _left(uses: Sequence[CommitmentUse]) -> dict[tuple[str, str, int], dict[Commitment, int]]:
    """(GPU type, region, hour) → the nano-GPU-hours that each commitment covers, in order of use."""
    left: dict[tuple[str, str, int], dict[Commitment, int]] = {}
    for used in sorted(uses, key=lambda used: (not used.commitment.region, used.commitment.id)):
        for (region, hour), nano in used.used.items():
            left.setdefault((used.commitment.gpu_type, region, hour), {})[used.commitment] = nano
    return left


def effective(commitment: Commitment, hour: int, nano: int) -> int:
    """What the first `nano` nano-GPU-hours of an hour cost."""
    nano_committed = commitment.committed(hour)
    return hourly(commitment, hour) * nano // nano_committed if nano_committed else 0


def hourly(commitment: Commitment, hour: int) -> int:
    """What an hour costs: its GPU-hours at the rate, and its share of the upfront payment."""
    share = amortized(commitment, hour + HOUR) - amortized(commitment, hour)
    return commitment.committed(hour) * commitment.rate_micros + share


def amortized(commitment: Commitment, until: int) -> int:
    """What has been amortized of the upfront payment at a time."""
    start, end = commitment.valid_from, commitment.valid_to
    passed = min(max(until, start), end) - start
    return upfront(commitment) * passed // (end - start)


def upfront(commitment: Commitment) -> int:
    return int(Fraction(commitment.upfront) * FEMTO)
