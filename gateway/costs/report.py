"""Tokens, GPU-time and cost by tenant, adapter, GPU type and more, over [from, to).

Requests and tokens belong to the moment in which their attempt ended, GPU-time and cost to that in which they
were spent. `rows` are what was delivered; `retry_waste` is what else the engines worked on: attempts that
failed, were given up or orphaned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, select

from gateway.costs.attribution import WEIGHTS, Work, attribute, weight
from gateway.costs.periods import HOUR, Period, iso
from gateway.costs.prices import PriceBook, decimal_text, list_prices
from gateway.metering.ledger import Ledger
from gateway.metering.records import Outcome
from gateway.metering.schema import usage_records as table

DIMENSIONS = ("tenant", "adapter", "version", "gpu_type", "engine", "hour")
DEFAULT_BY = ("tenant", "adapter", "gpu_type")

Key = tuple[str, ...]


@dataclass(slots=True)
class _Line:
    """Mutable while the records run by."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    nano_gpu_hours: int = 0
    cost: int = 0
    """10**-15 of the currency: millionths times nano-GPU-hours."""
    unpriced: set[str] = field(default_factory=set)

    def add(self, other: _Line) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.unpriced |= other.unpriced

    def document(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "gpu_seconds": self.nano_gpu_hours * 36 / 10_000_000,
            "nano_gpu_hours": self.nano_gpu_hours,
            "cost": None if self.unpriced else decimal_text(self.cost, 15),
        }


_SUMS = (
    "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens",
    "nano_gpu_hours", "cost",
)  # fmt: skip  # one name a line says no more


class _Table:
    """Lines by key: what is delivered, or what is wasted."""

    def __init__(self) -> None:
        self._lines: dict[Key, _Line] = {}

    def line(self, key: Key) -> _Line:
        return self._lines.setdefault(key, _Line())

    def total(self) -> _Line:
        total = _Line()
        for line in self._lines.values():
            total.add(line)
        return total

    def document(self, by: tuple[str, ...]) -> dict[str, Any]:
        rows = [
            {**dict(zip(by, key, strict=True)), **line.document()}
            for key, line in sorted(self._lines.items(), key=lambda item: item[0])
        ]
        return {"rows": rows, "totals": self.total().document()}


class _Report:
    def __init__(self, period: Period, by: tuple[str, ...], tenants: Sequence[str]) -> None:
        self._period = period
        self._by = by
        self._tenants = tenants
        self.delivered = _Table()
        self.wasted = _Table()

    def count(self, row: Row[Any]) -> None:
        """Requests and tokens of one record."""
        line = self._line(row, row.ended)
        if line is not None:
            line.requests += 1
            line.prompt_tokens += row.prompt_tokens
            line.cached_tokens += row.cached_tokens or 0
            line.completion_tokens += row.completion_tokens
            line.reasoning_tokens += row.reasoning_tokens

    def charge(self, row: Row[Any], at: int, nano_gpu_hours: int, rate: int | None) -> None:
        """GPU-time of one record in a piece of an hour that begins `at`."""
        line = self._line(row, at)
        if line is None:
            return
        line.nano_gpu_hours += nano_gpu_hours
        if rate is None:
            line.unpriced.add(row.gpu_type)
        else:
            line.cost += nano_gpu_hours * rate

    def _line(self, row: Row[Any], at: int) -> _Line | None:
        if not self._period.start <= at < self._period.end:
            return None
        if any(tenant != row.tenant for tenant in self._tenants):
            return None
        key = tuple(iso(at - at % HOUR) if name == "hour" else getattr(row, name) for name in self._by)
        return (self.delivered if row.billable else self.wasted).line(key)


def cost_report(
    ledger: Ledger, period: Period, *, by: tuple[str, ...] = DEFAULT_BY, tenants: Sequence[str] = ()
) -> dict[str, Any]:
    """The report's document, see README. `tenants`: a row is shown if its tenant is each of them; the
    division of GPU-time is made among all tenants in any case.

    Memory in proportion to the rows and to one engine's hour. Raises LedgerUnavailableError."""
    book = PriceBook(list_prices(ledger))
    report = _Report(period, by, tenants)
    with ledger.read() as connection:
        _fill(report, connection, period, book)
    delivered, wasted = report.delivered.document(by), report.wasted.document(by)
    missing = report.delivered.total().unpriced | report.wasted.total().unpriced
    return {
        "currency": book.currency,
        "from": iso(period.start),
        "to": iso(period.end),
        "by": list(by),
        "weights": WEIGHTS,
        **delivered,
        "retry_waste": wasted,
        "missing_prices": sorted(missing),
    }


def _fill(report: _Report, connection: Connection, period: Period, book: PriceBook) -> None:
    def cuts(gpu_type: str, start: int, end: int) -> list[int]:
        edges = {t for t in (period.start, period.end) if start < t < end}
        return sorted(edges.union(book.changes(gpu_type, start, end)))

    def counted(rows: Iterable[Row[Any]]) -> Iterator[Work]:
        for row in rows:
            report.count(row)
            yield Work(
                id=row.id,
                pool=(row.engine, row.gpu_type, row.gpu_count),
                start=row.dispatched,
                end=max(row.ended, row.dispatched + 1),  # whatever the clock says
                weight=weight(row.prompt_tokens, row.cached_tokens, row.completion_tokens),
                record=row,
            )

    for share in attribute(counted(_records(connection, period)), cuts):
        row = share.work.record
        report.charge(row, share.piece, share.nano_gpu_hours, book.rate(row.gpu_type, share.piece))


def _records(connection: Connection, period: Period) -> Iterable[Row[Any]]:
    """All that reached an engine and ran in the hours that the period touches, as `attribute` wants it."""
    first = period.start - period.start % HOUR
    last = period.end + -period.end % HOUR
    query = (
        select(*_READ)
        .where(table.c.ended >= first, table.c.dispatched < last, table.c.outcome != Outcome.REJECTED.value)
        .order_by(table.c.engine, table.c.gpu_type, table.c.gpu_count, table.c.dispatched, table.c.id)
        .execution_options(yield_per=1000)
    )
    return connection.execute(query)


_READ = tuple(
    table.c[name]
    for name in (
        "id", "tenant", "adapter", "version", "engine", "gpu_type", "gpu_count", "dispatched", "ended",
        "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "billable",
    )
)  # fmt: skip  # one name a line says no more
