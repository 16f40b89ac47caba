"""Applies `compare` to the ledger: a month's hours and tokens, calibrations, and the price book."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, select

from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.field_error import FieldError
from gateway.costs.periods import month_of
from gateway.costs.prices.book import Price, PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.reports.compare import (
    Demand,
    MeasuredWeights,
    Mix,
    Offer,
    Priced,
    Stated,
    Used,
    compare,
    demand,
)
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import calibrations
from gateway.units import FEMTO, HOUR, MICRO, NANO, decimal_of

_BUSY = {"usage", "retry_waste", "headroom"}


class CompareError(FieldError):
    """There is nothing to compare, or to compare with. `param` names the parameter."""


def compare_month(
    ledger: Ledger, month: str, *, gpu_types: Sequence[str] = (), reference: str | None = None, now: int
) -> dict[str, Any]:
    """Price the work of the month on every offer of the price book, or on those of `gpu_types`.
    docs/finance.md shows the document.

    Raises CompareError, PeriodError, LedgerUnavailableError."""
    period = month_of(month)
    with ledger.read() as connection:
        prices = read_prices(connection)
        book = PriceBook(prices)
        lines = [
            replace(line, gpu_type=book.spelling(line.gpu_type))
            for line in read_lines(connection, book, period, by=("base_model",))
        ]
        weights = _weights(connection)
    stated = _stated(prices, now)
    used = _used(lines)
    if not used:
        raise CompareError("month", f"No usage in {month}, so there is nothing to compare.")
    if reference is None:
        reference = max(used, key=lambda use: (use.provisioned, use.gpu_type)).gpu_type
    series = sorted({price.series for price in prices})
    gpu_types = [book.spelling(name) for name in gpu_types]
    reference = None if reference is None else book.spelling(reference)
    for gpu_type in gpu_types:
        if gpu_type not in {key[0] for key in series}:
            raise CompareError("gpu_type", f"The price book has no price for {gpu_type}.")
    chosen = [key for key in series if not gpu_types or key[0] in gpu_types]
    offers = [offer for key in chosen if (offer := _offer(book, key, period.end, now)) is not None]
    work = demand(used, reference, weights, stated)
    if not work.provisioned:
        raise CompareError(
            "reference",
            f"How fast {', '.join(work.left_out)} is relative to {reference[:63]} is unknown, so the work "
            "cannot be said in its hours: calibrate both, or state a speedup with the price.",
        )
    hours = Fraction(max(min(period.end, now) - period.start, HOUR), HOUR)
    rows = compare(work, offers, reference, weights, stated, hours)
    unpriced = {line.gpu_type for line in lines if line.cost is None and line.nano_gpu_hours}
    priced = decimal_of(Fraction(sum(line.cost or 0 for line in lines), FEMTO))
    return {
        "month": month,
        "currency": book.currency,
        "reference": reference,
        "hours": decimal_of(hours, 9),
        "actual": {
            "cost": None if unpriced else priced,
            **({"priced_cost": priced} if unpriced else {}),
            "missing_prices": sorted(unpriced),
            "used": [_used_document(use) for use in used],
            "left_out": list(work.left_out),
        },
        "work": _work(work),
        "rows": [_row(use, cheapest=index == 0 and use.gpus is not None) for index, use in enumerate(rows)],
    }


def _used(lines: Sequence[CostLine]) -> list[Used]:
    provisioned: dict[str, int] = {}
    busy: dict[str, int] = {}
    tokens: dict[tuple[str, str], list[int]] = {}
    for line in lines:
        if not line.gpu_type:  # rejected before it reached an engine
            continue
        provisioned[line.gpu_type] = provisioned.get(line.gpu_type, 0) + line.nano_gpu_hours
        if line.bucket in _BUSY:
            busy[line.gpu_type] = busy.get(line.gpu_type, 0) + line.nano_gpu_hours
        sums = tokens.setdefault((line.gpu_type, line.keys[0]), [0, 0, 0])
        sums[0] += line.prompt_tokens - line.cached_tokens
        sums[1] += line.cached_tokens
        sums[2] += line.completion_tokens
    return [
        Used(
            gpu_type,
            Fraction(provisioned[gpu_type], NANO),
            Fraction(busy.get(gpu_type, 0), NANO),
            tuple(
                Mix(model, *sums)
                for (g, model), sums in sorted(tokens.items())
                if g == gpu_type and any(sums)
            ),
        )
        for gpu_type in sorted(provisioned)
        if provisioned[gpu_type]
    ]


def _weights(connection: Connection) -> list[MeasuredWeights]:
    """The latest weights of each GPU type and base model: the speed of a GPU does not depend on the month."""
    c = calibrations.c
    query = select(c.gpu_type, c.base_model, c.id, c.prefill_ps, c.cached_ps, c.decode_ps).order_by(
        c.valid_from
    )
    latest = {(row[0], row[1]): MeasuredWeights(*row) for row in connection.execute(query)}
    return list(latest.values())


def _stated(prices: Sequence[Price], now: int) -> dict[str, Stated]:
    """The latest stated speedup of each GPU type, from any of its prices."""
    begun = [price for price in prices if price.speedup_millis is not None and price.valid_from <= now]
    return {
        price.gpu_type: Stated(
            price.gpu_type,
            Fraction(price.speedup_millis or 0, 1000),
            price.speedup_reference or "",
            price.speedup_source or "",
        )
        for price in sorted(begun, key=lambda p: (p.valid_from, p.recorded_at, p.id))
    }


def _offer(book: PriceBook, series: tuple[str, str, str], end: int, now: int) -> Offer | None:
    """At the last price of the month, or today's if the series is newer."""
    for time in (min(end - 1, now), now):
        rate = book.rate(*series, time)
        if rate is not None:
            return Offer(*series, Fraction(rate, MICRO))
    return None


def _used_document(used: Used) -> dict[str, Any]:
    return {
        "gpu_type": used.gpu_type,
        "provisioned_gpu_hours": decimal_of(used.provisioned),
        "busy_gpu_hours": decimal_of(used.busy),
        "utilization": _ratio(used.busy, used.provisioned),
    }


def _work(work: Demand) -> dict[str, Any]:
    return {
        "busy_reference_hours": decimal_of(work.busy, 9),
        "provisioned_reference_hours": decimal_of(work.provisioned, 9),
        "utilization": _ratio(work.busy, work.provisioned),
        "uncached_tokens": sum(mix.uncached for mix in work.mixes),
        "cached_tokens": sum(mix.cached for mix in work.mixes),
        "output_tokens": sum(mix.output for mix in work.mixes),
    }


def _row(priced: Priced, *, cheapest: bool) -> dict[str, Any]:
    return {
        "gpu_type": priced.offer.gpu_type,
        "region": priced.offer.region,
        "purchase": priced.offer.purchase,
        "rate_per_gpu_hour": decimal_of(priced.offer.rate),
        "discount": _maybe(priced.discount),
        "speedup": _maybe(priced.speed.value),
        "speedup_is": priced.speed.how,
        "speedup_source": priced.speed.source,
        "effective_rate": _maybe(priced.effective_rate),
        "busy_gpu_hours": _maybe(priced.busy_hours),
        "busy_cost": _maybe(priced.busy_cost),
        "loaded_gpu_hours": _maybe(priced.loaded_hours),
        "loaded_cost": _maybe(priced.loaded_cost),
        "gpus": priced.gpus,
        "gpus_cost": _maybe(priced.gpus_cost),
        "cheapest": cheapest,
    }


def _maybe(value: Fraction | None) -> str | None:
    """Exact if it has a finite decimal, else to nine places."""
    return None if value is None else decimal_of(value, 9)


def _ratio(part: Fraction, total: Fraction) -> str | None:
    return decimal_of(part / total, 9) if total else None
