"""Applies `compare` to the ledger: a month's hours and tokens, calibrations, and the price book."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, select

from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.field_error import FieldError
from gateway.costs.periods import HOUR, month
from gateway.costs.prices.amounts import decimal_of
from gateway.costs.prices.book import Price, PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.reconciliation.bill_files import NANO
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

_BUSY = {"usage", "retry_waste", "headroom"}
_MICROS = 10**6
_COST = 10**15


class CompareError(FieldError):
    """There is nothing to compare, or to compare with. `param` names the parameter."""


def compare_month(
    ledger: Ledger, of: str, *, gpu_types: Sequence[str] = (), reference: str | None = None, now: int
) -> dict[str, Any]:
    """Price the work of the month `of` on every offer of the price book, or on those of `gpu_types`.
    docs/finance.md shows the document.

    Raises CompareError, PeriodError, LedgerUnavailableError."""
    whole = month(of)
    with ledger.read() as connection:
        found = read_prices(connection)
        book = PriceBook(found)
        lines = [
            replace(line, gpu_type=book.spelling(line.gpu_type))
            for line in read_lines(connection, book, whole, by=("base_model",))
        ]
        weights = _weights(connection)
    stated = _stated(found, now)
    used = _used(lines)
    if not used:
        raise CompareError("month", f"No usage in {of}, so there is nothing to compare.")
    if reference is None:
        reference = max(used, key=lambda one: (one.provisioned, one.gpu_type)).gpu_type
    series = sorted({price.series for price in found})
    gpu_types = [book.spelling(name) for name in gpu_types]
    reference = None if reference is None else book.spelling(reference)
    for gpu_type in gpu_types:
        if gpu_type not in {key[0] for key in series}:
            raise CompareError("gpu_type", f"The price book has no price for {gpu_type}.")
    chosen = [key for key in series if not gpu_types or key[0] in gpu_types]
    offers = [offer for key in chosen if (offer := _offer(book, key, whole.end, now)) is not None]
    wanted = demand(used, reference, weights, stated)
    if not wanted.provisioned:
        raise CompareError(
            "reference",
            f"How fast {', '.join(wanted.left_out)} is relative to {reference[:63]} is unknown, so the work "
            "cannot be said in its hours: calibrate both, or state a speedup with the price.",
        )
    hours = Fraction(max(min(whole.end, now) - whole.start, HOUR), HOUR)
    rows = compare(wanted, offers, reference, weights, stated, hours)
    unpriced = {line.gpu_type for line in lines if line.cost is None and line.nano_gpu_hours}
    priced = decimal_of(Fraction(sum(line.cost or 0 for line in lines), _COST))
    return {
        "month": of,
        "currency": book.currency,
        "reference": reference,
        "hours": decimal_of(hours, 9),
        "actual": {
            "cost": None if unpriced else priced,
            **({"priced_cost": priced} if unpriced else {}),
            "missing_prices": sorted(unpriced),
            "used": [_used_document(one) for one in used],
            "left_out": list(wanted.left_out),
        },
        "work": _work(wanted),
        "rows": [_row(one, cheapest=index == 0 and one.gpus is not None) for index, one in enumerate(rows)],
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


def _stated(found: Sequence[Price], now: int) -> dict[str, Stated]:
    """The latest stated speedup of each GPU type, from any of its prices."""
    begun = [price for price in found if price.speedup_millis is not None and price.valid_from <= now]
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
    for at in (min(end - 1, now), now):
        rate = book.rate(*series, at)
        if rate is not None:
            return Offer(*series, Fraction(rate, _MICROS))
    return None


def _used_document(one: Used) -> dict[str, Any]:
    return {
        "gpu_type": one.gpu_type,
        "provisioned_gpu_hours": decimal_of(one.provisioned),
        "busy_gpu_hours": decimal_of(one.busy),
        "utilisation": _ratio(one.busy, one.provisioned),
    }


def _work(wanted: Demand) -> dict[str, Any]:
    return {
        "busy_reference_hours": decimal_of(wanted.busy, 9),
        "provisioned_reference_hours": decimal_of(wanted.provisioned, 9),
        "utilisation": _ratio(wanted.busy, wanted.provisioned),
        "uncached_tokens": sum(mix.uncached for mix in wanted.mixes),
        "cached_tokens": sum(mix.cached for mix in wanted.mixes),
        "output_tokens": sum(mix.output for mix in wanted.mixes),
    }


def _row(one: Priced, *, cheapest: bool) -> dict[str, Any]:
    return {
        "gpu_type": one.offer.gpu_type,
        "region": one.offer.region,
        "purchase": one.offer.purchase,
        "rate_per_gpu_hour": decimal_of(one.offer.rate),
        "discount": _maybe(one.discount),
        "speedup": _maybe(one.speed.value),
        "speedup_is": one.speed.how,
        "speedup_source": one.speed.source,
        "effective_rate": _maybe(one.effective_rate),
        "busy_gpu_hours": _maybe(one.busy_hours),
        "busy_cost": _maybe(one.busy_cost),
        "loaded_gpu_hours": _maybe(one.loaded_hours),
        "loaded_cost": _maybe(one.loaded_cost),
        "gpus": one.gpus,
        "gpus_cost": _maybe(one.gpus_cost),
        "cheapest": cheapest,
    }


def _maybe(value: Fraction | None) -> str | None:
    """Exact if it has a finite decimal, else to nine places."""
    return None if value is None else decimal_of(value, 9)


def _ratio(part: Fraction, whole: Fraction) -> str | None:
    return decimal_of(part / whole, 9) if whole else None
