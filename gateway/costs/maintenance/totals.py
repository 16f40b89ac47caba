"""Totals over all time, for metrics. Sums of closed months never change and are cached, so that a pass reads
only the open months."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from sqlalchemy import Connection, func, literal, select

from gateway.costs.cost_lines import BUCKETS, read_lines
from gateway.costs.maintenance.snapshot import read_snapshot, write_snapshot
from gateway.costs.periods import iso, month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.rollups.balance import imbalances
from gateway.costs.rollups.set_aside import count_set_aside
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_hours, periods, rollups
from gateway.observability.computed_metrics import LABEL_CAP, Series
from gateway.observability.metrics import BASE, OTHER
from gateway.units import FEMTO

SETTLED = "settled"
"""Name of the snapshot that caches the sums of closed months."""
_NOBODYS = ("headroom", "startup", "idle")
_MOST_IMBALANCES = 1000
assert set(_NOBODYS) < set(BUCKETS)

CostKey = tuple[str, str, str, str]
"""(adapter, gpu_type, currency, bucket): the labels of florin_cost_total."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Series of metrics: (label values, value)."""

    provisioned: Series
    """GPU-seconds by engine and GPU type."""
    busy: Series
    cost: Series
    """In the currency; omitted without a price."""
    imbalance: int
    """Nano-GPU-hours by which the parts of the open months' engine-hours differ from their wholes."""
    set_aside: int
    """Engine-hours excluded from these figures."""


@dataclass(slots=True)
class _Settled:
    """Mutable: grows by a month at a time."""

    through: str = ""
    """The last closed month that is included."""
    adapters: dict[str, None] = field(default_factory=dict)
    """Adapters that have a label of their own, and keep it."""
    cost: defaultdict[CostKey, int] = field(default_factory=lambda: defaultdict(int))
    """10**-15 of the currency."""

    @classmethod
    def of(cls, document: Any) -> Self:
        settled = cls(document["through"], dict.fromkeys(document["adapters"]))
        settled.cost.update({tuple(key): int(value) for key, value in document["cost"]})
        return settled

    def document(self) -> Any:
        cost = [(key, str(value)) for key, value in self.cost.items()]  # more than 64 bits
        return {"through": self.through, "adapters": list(self.adapters), "cost": cost}

    def label(self, adapter: str) -> str:
        if adapter not in self.adapters:
            if len(self.adapters) >= LABEL_CAP:
                return OTHER
            self.adapters[adapter] = None
        return adapter


def totals(ledger: Ledger, now: int) -> Totals:
    """As of the roll-ups as they are. Reads those of the months that are not closed. Raises
    LedgerUnavailableError."""
    kept = read_snapshot(ledger, SETTLED)
    settled = _Settled() if kept is None else _Settled.of(kept)
    before = (settled.through, len(settled.adapters))
    with ledger.read() as connection:
        book = PriceBook(read_prices(connection))
        closed, open_ = _months(connection, settled.through, now)
        for name in closed:
            _add(settled, settled.cost, connection, book, name)
            settled.through = name
        cost = settled.cost.copy()
        for name in open_:
            _add(settled, cost, connection, book, name)
        imbalance = _imbalance(connection, open_)
        provisioned, busy = _gpu_seconds(connection)
        set_aside = count_set_aside(connection)
    if (settled.through, len(settled.adapters)) != before:
        write_snapshot(ledger, SETTLED, now, settled.document())
    return Totals(
        provisioned=provisioned,
        busy=busy,
        cost=[(key, value / FEMTO) for key, value in sorted(cost.items())],
        imbalance=imbalance,
        set_aside=set_aside,
    )


def _months(connection: Connection, through: str, now: int) -> tuple[list[str], list[str]]:
    """Months after `through` that have usage, in order: closed, and not closed."""
    last_closed = (
        connection.execute(select(func.max(periods.c.month)).where(periods.c.state == "closed")).scalar_one()
        or ""
    )
    first = connection.execute(select(func.min(engine_hours.c.hour))).scalar_one()
    last = max(iso(now)[:7], connection.execute(select(func.max(rollups.c.posted))).scalar_one() or "")
    names = [] if first is None else [n for n in _between(iso(first)[:7], last) if n > through]
    return [n for n in names if n <= last_closed], [n for n in names if n > last_closed]


def _between(first: str, last: str) -> Iterator[str]:
    while first <= last:
        yield first
        first = iso(month_of(first).end)[:7]


def _add(
    labels: _Settled, cost: defaultdict[CostKey, int], connection: Connection, book: PriceBook, name: str
) -> None:
    for line in read_lines(connection, book, month_of(name), ("adapter",)):
        if line.cost is not None and line.cost:
            adapter = "" if line.bucket in _NOBODYS else labels.label(line.keys[0] or BASE)
            cost[adapter, line.gpu_type, book.currency or "", line.bucket] += line.cost


def _imbalance(connection: Connection, names: Iterable[str]) -> int:
    """The imbalance of the open months, including the corrections of earlier hours posted in them."""
    wrong = {
        (i.hour, i.engine, i.gpu_type): i for n in names for i in imbalances(connection, n, _MOST_IMBALANCES)
    }
    return sum(abs(i.parts - i.total) for i in wrong.values())


def _gpu_seconds(connection: Connection) -> tuple[Series, Series]:
    table = engine_hours.c
    key = (table.engine, table.gpu_type)
    # As floats: a year of many GPUs comes close to the 64-bit limit of integers.
    sums = [func.sum(literal(1.0) * us * table.gpu_count) for us in (table.provisioned_us, table.busy_us)]
    rows = connection.execute(
        select(*key, *sums).where(table.engine != "").group_by(*key).order_by(*key)
    ).all()
    return [((e, g), float(p) / 1e6) for e, g, p, _ in rows], [
        ((e, g), float(b) / 1e6) for e, g, _, b in rows
    ]
