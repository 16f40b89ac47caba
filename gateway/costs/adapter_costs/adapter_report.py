"""What each adapter costs besides its requests.

Three figures, from what an adapter alone causes to what it only occupies:

- `cost`: GPU time of its delivered requests. Without the adapter, they would not have been made.
- `load_cost`: GPU time of its loads at saturation, as `florin calibrate` measured one (null without a
  calibration). It is part of `cost`, and what rare use adds to it.
- `slot_cost`: its share of the engines that it was resident on, as if each of their slots paid an equal part
  of the engine's time. This is not spent additionally: an engine costs the same with an empty slot. It says
  what the adapter's place would be worth to another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, and_, select

from gateway.costs.cost_lines import effective, read_lines
from gateway.costs.periods import Period, iso
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import calibrations, engine_hours, residency_spans, usage
from gateway.units import DAY, HOUR, Amount, amount_text, decimal_of

_PS = 3600 * 10**12
"""Picoseconds in an hour."""
_RARE = 10
"""Requests per day below which an adapter counts as rarely used."""


@dataclass(slots=True)
class AdapterCosts:
    """Mutable: the sums of one adapter."""

    requests: int = 0
    cost: int = 0
    unpriced: bool = False
    loads: int = 0
    load_cost: Fraction = Fraction(0)
    """In the currency."""
    unmeasured: bool = False
    """Some loads were on GPUs without a calibration or a price."""
    slot_us: int = 0
    slot_cost: Fraction = Fraction(0)
    slots_unpriced: bool = False
    engines: set[str] = field(default_factory=set)

    def document(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "cost": None if self.unpriced else amount_text(Amount(self.cost)),
            "loads": self.loads,
            "load_cost": None if self.unmeasured else decimal_of(self.load_cost),
            "slot_hours": decimal_of(Fraction(self.slot_us, HOUR), 6),
            "slot_cost": None if self.slots_unpriced else decimal_of(self.slot_cost),
            "engines": len(self.engines),
        }


def adapter_report(ledger: Ledger, period: Period, *, now: int) -> dict[str, Any]:
    """By adapter, those with the most expensive slots first. `rare`: the same for all adapters with fewer
    than ten requests a day. Raises LedgerUnavailableError."""
    hours = Period(effective(period).start, min(effective(period).end, now))
    by_adapter: defaultdict[str, AdapterCosts] = defaultdict(AdapterCosts)
    with ledger.read() as connection:
        book = PriceBook(read_prices(connection))
        _add_requests(by_adapter, connection, book, period)
        _add_loads(by_adapter, connection, book, hours)
        _add_slots(by_adapter, connection, book, hours)
    days = max(Fraction(hours.end - hours.start, DAY), Fraction(1))
    rare = [costs for costs in by_adapter.values() if costs.requests < _RARE * days]
    ordered = sorted(by_adapter.items(), key=lambda item: (-item[1].slot_cost, -item[1].cost, item[0]))
    return {
        "currency": book.currency,
        "from": iso(hours.start),
        "to": iso(max(hours.start, hours.end)),
        "rows": [{"adapter": name, **costs.document()} for name, costs in ordered],
        "rare": {"adapters": len(rare), **_total(rare).document()},
        "total": {"adapters": len(by_adapter), **_total(list(by_adapter.values())).document()},
    }


def _add_requests(
    by_adapter: Mapping[str, AdapterCosts], connection: Connection, book: PriceBook, period: Period
) -> None:
    for line in read_lines(connection, book, period, ("adapter",)):
        [adapter] = line.keys
        if adapter and line.bucket == "usage":
            costs = by_adapter[adapter]
            costs.requests += line.requests
            costs.cost += line.cost or 0
            costs.unpriced |= line.cost is None


def _add_loads(
    by_adapter: Mapping[str, AdapterCosts], connection: Connection, book: PriceBook, period: Period
) -> None:
    record, hour = usage.c, engine_hours.c
    same = and_(
        hour.hour == record.ended - record.ended % HOUR,
        hour.engine == record.engine,
        hour.gpu_type == record.gpu_type,
        hour.gpu_count == record.gpu_count,
    )
    columns = (record.adapter, record.adapter_loads, record.ended, record.gpu_type)
    query = (
        select(*columns, hour.region, hour.purchase, calibrations.c.load_ps)
        .select_from(
            usage.outerjoin(engine_hours, same).outerjoin(calibrations, calibrations.c.id == hour.calibration)
        )
        .where(record.adapter_loads > 0, record.ended >= period.start, record.ended < period.end)
    )
    for adapter, loads, ended, gpu_type, region, purchase, load_ps in connection.execute(query):
        costs = by_adapter[adapter]
        costs.loads += loads
        rate = None if purchase is None else book.rate(gpu_type, region, purchase, ended)
        if load_ps is None or rate is None:
            costs.unmeasured = True
        else:
            costs.load_cost += Fraction(loads * load_ps * rate, _PS * 10**6)


def _add_slots(
    by_adapter: Mapping[str, AdapterCosts], connection: Connection, book: PriceBook, period: Period
) -> None:
    table = residency_spans.c
    query = select(residency_spans).where(table.seen > period.start, table.started < period.end)
    for span in connection.execute(query).mappings():
        costs = by_adapter[span["version"].partition("@")[0]]
        start, end = max(span["started"], period.start), min(span["seen"], period.end)
        costs.slot_us += end - start
        costs.engines.add(span["engine"])
        series = span["gpu_type"], span["region"], span["purchase"]
        for begin, until in _pieces(book, series, start, end):
            rate = book.rate(*series, begin)
            if rate is None:
                costs.slots_unpriced = True
            else:
                gpu_us = (until - begin) * span["gpu_count"]
                costs.slot_cost += Fraction(gpu_us * rate, HOUR * 10**6 * max(span["slots"], 1))


def _pieces(book: PriceBook, series: tuple[str, str, str], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Parts of [start, end) with one rate each."""
    return pairwise((start, *book.changes(*series, start, end), end))


def _total(costs: Sequence[AdapterCosts]) -> AdapterCosts:
    total = AdapterCosts()
    for adapter in costs:
        for name in ("requests", "cost", "loads", "load_cost", "slot_us", "slot_cost"):
            setattr(total, name, getattr(total, name) + getattr(adapter, name))
        for name in ("unpriced", "unmeasured", "slots_unpriced"):
            setattr(total, name, getattr(total, name) or getattr(adapter, name))
        total.engines |= adapter.engines
    return total
