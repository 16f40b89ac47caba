"""Coverage and utilization of commitments, list price against net cost, and savings by spot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection

from gateway.costs.commitments.commitment import CommitmentUse
from gateway.costs.commitments.commitment_store import uses_of
from gateway.costs.periods import Period, complete_hours, iso
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.rollups.provisioned import provisioned
from gateway.metering.ledger.ledger import Ledger
from gateway.units import FEMTO, HOUR, NANO, decimal_of

Hours = Mapping[tuple[str, str, str], Mapping[int, int]]
"""(GPU type, region, purchase) → start of the hour → nano-GPU-hours provisioned."""


def commitment_report(ledger: Ledger, month: str, *, now: int) -> dict[str, Any]:
    """The commitments in the complete hours of a month. docs/reconciliation.md shows the result.

    `rows`: one for each commitment. `gpu_types`: how much of the provisioned time commitments cover. `spot`:
    what spot engines cost, against the on-demand price; null where a price is missing.

    Raises PeriodError, LedgerUnavailableError."""
    within = complete_hours(month, now)
    with ledger.read() as connection:
        book = PriceBook(read_prices(connection))
        uses, hours = uses_of(connection, within), _provisioned(connection, within)
    nets = [net_cost(use, within) for use in uses]
    return {
        "month": month,
        "from": iso(within.start),
        "to": iso(within.end),
        "currency": book.currency or next((use.commitment.currency for use in uses), None),
        "rows": [_row(use, book, within) for use in uses],
        "totals": {
            "net_cost": decimal_of(sum(nets, Fraction(0))),
            "unused_cost": decimal_of(sum((unused_cost(use, within) for use in uses), Fraction(0))),
        },
        "gpu_types": _coverage(uses, hours),
        "spot": _spot(hours, book),
    }


def _provisioned(connection: Connection, within: Period) -> Hours:
    by_series: dict[tuple[str, str, str], dict[int, int]] = {}
    for _, gpu_type, _, region, purchase, hour, nano in provisioned(connection, within):
        hours = by_series.setdefault((gpu_type, region, purchase), {})
        hours[hour] = hours.get(hour, 0) + nano
    return by_series


def _row(use: CommitmentUse, book: PriceBook, within: Period) -> dict[str, Any]:
    commitment = use.commitment
    listed = [
        _at_rate(mean_rate(book, commitment.gpu_type, region, "on_demand", hour), nano)
        for (region, hour), nano in use.used.items()
    ]
    known = [cost for cost in listed if cost is not None]
    list_cost = sum(known, Fraction(0)) if len(known) == len(listed) else None
    net = net_cost(use, within)
    return {
        "id": commitment.id,
        "description": commitment.description,
        "gpu_type": commitment.gpu_type,
        "region": commitment.region,
        "gpus": commitment.gpus,
        "committed_gpu_hours": _hours(use.committed),
        "used_gpu_hours": _hours(use.used_nano),
        "unused_gpu_hours": _hours(use.committed - use.used_nano),
        "utilization": _share(use.used_nano, use.committed),
        "hourly_cost": decimal_of(_hourly(use)),
        "amortized_upfront": decimal_of(commitment.amortized(within)),
        "net_cost": decimal_of(net),
        "unused_cost": decimal_of(unused_cost(use, within)),
        "list_cost": _text(list_cost),
        "savings": _text(None if list_cost is None else list_cost - net),
    }


def net_cost(use: CommitmentUse, within: Period) -> Fraction:
    """What a commitment costs in a period: its hours at its rate, and its share of the upfront payment."""
    return _hourly(use) + use.commitment.amortized(within)


def _hourly(use: CommitmentUse) -> Fraction:
    return Fraction(use.committed * use.commitment.rate_micros, FEMTO)


def unused_cost(use: CommitmentUse, within: Period) -> Fraction:
    """The part of the net cost for hours that no engine used."""
    if not use.committed:
        return Fraction(0)
    return net_cost(use, within) * (use.committed - use.used_nano) / use.committed


def _coverage(uses: Sequence[CommitmentUse], hours: Hours) -> list[dict[str, Any]]:
    """By GPU type: time provisioned, and the part that commitments cover."""
    rows = []
    for gpu_type in sorted({name for name, *_ in hours} | {use.commitment.gpu_type for use in uses}):
        provisioned = {p: _sum(hours, gpu_type, p) for p in ("on_demand", "spot", "reserved")}
        covered = sum(use.used_nano for use in uses if use.commitment.gpu_type == gpu_type)
        rows.append(
            {
                "gpu_type": gpu_type,
                "provisioned_gpu_hours": _hours(sum(provisioned.values())),
                "covered_gpu_hours": _hours(covered),
                "coverage": _share(covered, sum(provisioned.values())),
                "reserved_without_commitment_gpu_hours": _hours(provisioned["reserved"] - covered),
                "spot_gpu_hours": _hours(provisioned["spot"]),
                "on_demand_gpu_hours": _hours(provisioned["on_demand"]),
            }
        )
    return rows


def _spot(hours: Hours, book: PriceBook) -> list[dict[str, Any]]:
    rows = []
    for (gpu_type, region, purchase), by_hour in sorted(hours.items()):
        if purchase != "spot":
            continue
        cost, listed = (_priced(book, gpu_type, region, model, by_hour) for model in ("spot", "on_demand"))
        rows.append(
            {
                "gpu_type": gpu_type,
                "region": region,
                "gpu_hours": _hours(sum(by_hour.values())),
                "cost": _text(cost),
                "list_cost": _text(listed),
                "savings": _text(None if cost is None or listed is None else listed - cost),
            }
        )
    return rows


def _priced(
    book: PriceBook, gpu_type: str, region: str, purchase: str, hours: Mapping[int, int]
) -> Fraction | None:
    """None if a price is missing."""
    costs = [
        _at_rate(mean_rate(book, gpu_type, region, purchase, hour), nano) for hour, nano in hours.items()
    ]
    known = [cost for cost in costs if cost is not None]
    return sum(known, Fraction(0)) if len(known) == len(costs) else None


def mean_rate(book: PriceBook, gpu_type: str, region: str, purchase: str, hour: int) -> Fraction | None:
    """The mean rate of an hour: a price that changes within it counts in proportion to its time. None if one
    is missing."""
    edges = [hour, *book.changes(gpu_type, region, purchase, hour, hour + HOUR), hour + HOUR]
    mean = Fraction(0)
    for start, end in pairwise(edges):
        rate = book.rate(gpu_type, region, purchase, start)
        if rate is None:
            return None
        mean += Fraction(rate * (end - start), HOUR)
    return mean


def _at_rate(rate: Fraction | None, nano: int) -> Fraction | None:
    return None if rate is None else Fraction(nano * rate, FEMTO)


def _sum(hours: Hours, gpu_type: str, purchase: str) -> int:
    return sum(
        sum(by_hour.values())
        for (name, _, model), by_hour in hours.items()
        if (name, model) == (gpu_type, purchase)
    )


def _hours(nano: int) -> str:
    return decimal_of(Fraction(nano, NANO))


def _share(part: int, total: int) -> str | None:
    """To six places; None of nothing."""
    return decimal_of(Fraction(part, total), 6) if total else None


def _text(amount: Fraction | None) -> str | None:
    return None if amount is None else decimal_of(amount)
