"""How engines use commitments: which hours they cover, and what nobody used. Pure.

A commitment pays for a number of GPUs of one type, hour by hour, over its term. Engines that were registered
as `reserved` use it. Within an hour, commitments for the engine's region come before those for any region,
and older ones first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from gateway.costs.field_error import FieldError
from gateway.costs.periods import Period, iso
from gateway.units import HOUR, NANO, Micros, decimal_of, micros_text

MOST_GPUS = 100_000
_LARGEST = Decimal(10) ** 12

Usage = Mapping[tuple[str, str], Mapping[int, int]]
"""(GPU type, region) → start of the hour → nano-GPU-hours provisioned by engines of purchase `reserved`."""


class CommitmentError(FieldError):
    """An invalid commitment. `param` names the field."""


@dataclass(frozen=True, slots=True)
class Commitment:
    id: int
    gpu_type: str
    region: str
    """Empty: any."""
    gpus: int
    valid_from: int
    """Unix microseconds, UTC; inclusive."""
    valid_to: int
    """Exclusive."""
    rate_micros: Micros
    """Per GPU-hour, paid for every hour of the term."""
    upfront: str
    """Paid once for the whole term; exact decimal."""
    currency: str
    description: str
    recorded_at: int
    recorded_by: str
    withdrawn_at: int | None = None
    withdrawn_by: str | None = None
    withdrawn_reason: str | None = None

    def committed(self, hour: int) -> int:
        """Nano-GPU-hours that it pays for in the hour that starts then."""
        inside = min(self.valid_to, hour + HOUR) - max(self.valid_from, hour)
        return max(0, inside) * self.gpus * NANO // HOUR

    def amortized(self, within: Period) -> Fraction:
        """The part of the upfront payment that belongs to a period, in proportion to time."""
        inside = min(self.valid_to, within.end) - max(self.valid_from, within.start)
        return Fraction(self.upfront) * max(0, inside) / (self.valid_to - self.valid_from)

    def document(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "gpu_type": self.gpu_type,
            "region": self.region,
            "gpus": self.gpus,
            "valid_from": iso(self.valid_from),
            "valid_to": iso(self.valid_to),
            "rate_per_gpu_hour": micros_text(self.rate_micros),
            "upfront": decimal_of(Fraction(self.upfront)),
            "currency": self.currency,
            "description": self.description,
            "recorded_at": iso(self.recorded_at),
            "recorded_by": self.recorded_by,
            "withdrawn_at": None if self.withdrawn_at is None else iso(self.withdrawn_at),
            "withdrawn_by": self.withdrawn_by,
            "withdrawn_reason": self.withdrawn_reason,
        }


@dataclass(slots=True)
class CommitmentUse:
    """What became of one commitment in a period. Mutable while it is computed."""

    commitment: Commitment
    committed: int = 0
    """Nano-GPU-hours."""
    used: dict[tuple[str, int], int] = field(default_factory=dict)
    """(region of the engines, start of the hour) → nano-GPU-hours."""
    unused: dict[int, int] = field(default_factory=dict)
    """Start of the hour → nano-GPU-hours; no entry for 0."""

    @property
    def used_nano(self) -> int:
        return sum(self.used.values())


def amount(param: str, value: str) -> str:
    """A decimal ≥ 0 with at most six places, as it is stored. Raises CommitmentError."""
    try:
        number = Decimal(value)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or not 0 <= number <= _LARGEST or number != round(number, 6):
        raise CommitmentError(
            param,
            f"{param}: {value[:40]!r} is not an amount: write a decimal of at most six places, 0 or more.",
        )
    return f"{number:f}"


def use(commitments: Iterable[Commitment], usage: Usage, within: Period) -> list[CommitmentUse]:
    """What engines used of each commitment in the whole hours of a period, in the order of their ids."""
    left = {series: dict(hours) for series, hours in usage.items()}
    counted = [c for c in commitments if c.withdrawn_at is None]
    uses = {c.id: _use_one(c, left, within) for c in sorted(counted, key=lambda c: (not c.region, c.id))}
    return [uses[number] for number in sorted(uses)]


def _use_one(
    commitment: Commitment, left: Mapping[tuple[str, str], dict[int, int]], within: Period
) -> CommitmentUse:
    usage = CommitmentUse(commitment)
    mine = [
        (region, hours)
        for (gpu_type, region), hours in sorted(left.items())
        if gpu_type == commitment.gpu_type and commitment.region in {"", region}
    ]
    first = max(within.start, commitment.valid_from - commitment.valid_from % HOUR)
    for hour in range(first, min(within.end, commitment.valid_to), HOUR):
        rest = commitment.committed(hour)
        usage.committed += rest
        for region, hours in mine:
            if nano := min(rest, hours.get(hour, 0)):
                usage.used[region, hour] = nano
                hours[hour] -= nano
                rest -= nano
        if rest:
            usage.unused[hour] = rest
    return usage


class UnusedCapacity:
    """Reserved GPU time that no engine used. Mutable: the lines of a bill take from it."""

    def __init__(self, uses: Sequence[CommitmentUse] = ()) -> None:
        self._left = [(used.commitment, dict(used.unused)) for used in uses if used.unused]

    def __repr__(self) -> str:
        return f"<UnusedCapacity of {len(self._left)} commitments>"

    def take(self, gpu_type: str, region: str, hour: int, most: int) -> list[tuple[int, Micros]]:
        """Take at most `most` nano-GPU-hours of an hour. Returns what was taken: (nano-GPU-hours, millionths
        of the currency per GPU-hour) by commitment."""
        taken = []
        for commitment, hours in self._left:
            fits = commitment.gpu_type == gpu_type and (not region or commitment.region in {"", region})
            nano = min(most, hours.get(hour, 0)) if fits else 0
            if nano > 0:
                hours[hour] -= nano
                most -= nano
                taken.append((nano, commitment.rate_micros))
        return taken
