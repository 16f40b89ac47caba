"""Lines of a customer's statement that no usage makes: monthly fees of the tenant or one of its adapters, and
single charges, credits and refunds. Pure.

Nothing is edited. A fee ends by a line of its own; what a single line said is taken back by its opposite. A
line counts once it is approved; a single one then is on the next statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from gateway.costs.periods import iso, month_of
from gateway.units import DAY, Cents, decimal_text, half_up

Kind = Literal["fee", "charge", "credit", "refund", "end"]
_TAKEN_OFF = {"credit", "refund"}


@dataclass(frozen=True, slots=True)
class ManualLine:
    id: int
    kind: Kind
    """`end`: of a fee."""
    tenant: str
    adapter: str
    """Whose fee it is; empty: the tenant's."""
    cents: Cents
    """Per month, of a fee. Never below zero."""
    reason: str
    begins: str
    """First day of a fee; empty: a single line."""
    ends: str
    """Last day of a fee; empty: it goes on."""
    prorated: bool
    """By day, in the months in which it begins and ends."""
    fee: int | None
    """Which fee ends."""
    month: str
    """On whose statement a single line is; empty: it is not approved yet."""
    requested_at: int
    requested_by: str
    approved_at: int | None = None
    approved_by: str | None = None
    withdrawn_at: int | None = None
    withdrawn_by: str | None = None

    @property
    def counts(self) -> bool:
        return self.approved_at is not None and self.withdrawn_at is None

    @property
    def pending(self) -> bool:
        return self.approved_at is None and self.withdrawn_at is None

    @property
    def terms(self) -> tuple[Any, ...]:
        """The same line, asked for twice, is one."""
        return (
            self.kind, self.tenant, self.adapter, self.cents, self.reason, self.begins, self.ends,
            self.prorated, self.fee,
        )  # fmt: skip  # one name a line says no more

    def document(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "kind": self.kind,
            "tenant": self.tenant,
            "adapter": self.adapter or None,
            "amount": decimal_text(self.cents, 2),
            "reason": self.reason,
            "begins": self.begins or None,
            "ends": self.ends or None,
            "prorated": self.prorated,
            "fee": self.fee,
            "month": self.month or None,
            "state": "withdrawn" if self.withdrawn_at else "approved" if self.counts else "pending",
            "requested_at": iso(self.requested_at),
            "requested_by": self.requested_by,
            "approved_at": None if self.approved_at is None else iso(self.approved_at),
            "approved_by": self.approved_by,
            "withdrawn_at": None if self.withdrawn_at is None else iso(self.withdrawn_at),
            "withdrawn_by": self.withdrawn_by,
        }


@dataclass(frozen=True, slots=True)
class MonthLine:
    """What a line adds to the statement of a month."""

    kind: Kind
    id: int
    reason: str
    cents: Cents
    """Below zero: taken off."""
    adapter: str = ""
    days: int = 0
    """How many are charged, if a fee is for a part of the month; 0: for all of it."""
    days_in_month: int = 0

    @property
    def is_credit(self) -> bool:
        return self.kind in _TAKEN_OFF


Lines = Mapping[str, tuple[MonthLine, ...]]
"""Tenant → its lines of a month."""


def month_lines(lines: Sequence[ManualLine], month: str, step: int = 1) -> Lines:
    """`step`: hundredths to which a part of a fee is rounded."""
    by_tenant: dict[str, tuple[MonthLine, ...]] = {}
    for line in lines:
        added = _fee(line, last_day(line, lines), month, step) if line.kind == "fee" else _single(line, month)
        if line.counts and added is not None:
            by_tenant[line.tenant] = (*by_tenant.get(line.tenant, ()), added)
    return by_tenant


def last_day(fee: ManualLine, lines: Iterable[ManualLine]) -> str:
    """The last day of a fee; empty: it goes on."""
    ends = [line.ends for line in lines if line.fee == fee.id and line.counts]
    return min(filter(None, [fee.ends, *ends]), default="")


def _single(line: ManualLine, month: str) -> MonthLine | None:
    if line.month != month or line.kind in {"fee", "end"}:
        return None
    cents = Cents(-line.cents if line.kind in _TAKEN_OFF else line.cents)
    return MonthLine(line.kind, line.id, line.reason, cents)


def _fee(fee: ManualLine, ends: str, month: str, step: int) -> MonthLine | None:
    """Days are UTC, as the months are."""
    period = month_of(month)
    first, last = iso(period.start)[:10], iso(period.end - DAY)[:10]
    begin, end = max(fee.begins, first), min(ends or last, last)
    if begin > end:
        return None
    days = (date.fromisoformat(end) - date.fromisoformat(begin)).days + 1
    days_in_month = (period.end - period.start) // DAY
    if not fee.prorated or days == days_in_month:
        return MonthLine("fee", fee.id, fee.reason, fee.cents, fee.adapter)
    cents = Cents(half_up(fee.cents * days, days_in_month * step) * step)
    return MonthLine("fee", fee.id, fee.reason, cents, fee.adapter, days, days_in_month)
