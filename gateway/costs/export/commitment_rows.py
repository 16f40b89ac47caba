"""Rows of recorded commitments: their purchase, what no engine used of them, and in the chargeback dataset
what they cost beyond the price book."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from gateway.costs.commitments.commitment import Commitment, CommitmentUse
from gateway.costs.export.card_rows import costs, unit_price
from gateway.costs.export.cells import Fixed, Row
from gateway.costs.export.charges import Charge, ListPrice, unit_prices, within
from gateway.costs.export.columns import Granularity
from gateway.costs.export.committed import Committed, effective, hourly, upfront
from gateway.costs.export.row_facts import GPU_HOURS, discount, gpu_time, sku, tags
from gateway.costs.periods import Period
from gateway.units import DAY, HOUR, NANO

_FREE = Fixed(0, 15)


def rows(committed: Committed, listed: ListPrice, granularity: Granularity) -> Iterator[Row]:
    """For the infrastructure dataset."""
    for use in committed.uses:
        yield from _purchases(use, committed.within)
        yield from _unused(use, listed, HOUR if granularity == "hourly" else DAY)


def beyond_the_books(committed: Committed, charges: Iterable[Charge]) -> Iterator[Row]:
    """For the chargeback dataset, where covered time has the price book's cost: what each commitment is
    billed and costs beyond it. No tenant is charged for that. `charges`: all, as `covered` gives them."""
    books: defaultdict[int, int] = defaultdict(int)
    for charge in charges:
        if charge.covering is not None:
            books[charge.covering.id] += charge.line.nano_gpu_hours * charge.prices.paid
    for use in committed.uses:
        commitment, booked = use.commitment, books[use.commitment.id]
        billed = sum(amount for _, amount, _ in _payments(use, committed.within)) - booked
        hours = range(committed.within.start, committed.within.end, HOUR)
        effective_cost = sum(hourly(commitment, hour) for hour in hours) - booked
        if billed or effective_cost:
            yield {
                **within(committed.within),
                **_about(commitment),
                **costs(billed),
                "ChargeCategory": "Adjustment",
                "ChargeDescription": f"What {_name(commitment)} costs beyond the price of reserved GPU time",
                "ChargeFrequency": "Recurring",
                "EffectiveCost": Fixed(effective_cost, 15),
                "PricingCurrencyEffectiveCost": Fixed(effective_cost, 15),
                "SkuId": f"commitment/{commitment.gpu_type}",
                "SkuMeter": "Commitment",
            }


def _payments(use: CommitmentUse, period: Period) -> Iterator[tuple[str, int, int]]:
    """How often, the amount in 10**-15 of the currency, and the nano-GPU-hours that it pays for."""
    commitment = use.commitment
    if use.committed and commitment.rate_micros:
        yield "Recurring", use.committed * commitment.rate_micros, use.committed
    if upfront(commitment) and period.start <= commitment.valid_from < period.end:
        term = commitment.valid_to - commitment.valid_from
        yield "One-Time", upfront(commitment), term * commitment.gpus * NANO // HOUR


def _purchases(use: CommitmentUse, period: Period) -> Iterator[Row]:
    commitment = use.commitment
    for frequency, amount, nano in _payments(use, period):
        recurring = frequency == "Recurring"
        quantity = Fixed(nano, 9) if recurring else Fixed(1, 0)
        price = Fixed(commitment.rate_micros, 6) if recurring else Fixed(amount // NANO, 6)
        what = "Hourly payment" if recurring else "Upfront payment"
        yield {
            **within(_clipped(commitment, period)),
            **_about(commitment),
            **discount(commitment.id, commitment.description, nano, status=None),
            **costs(amount),
            **unit_price(price),
            "ChargeCategory": "Purchase",
            "ChargeDescription": f"{what} for {_name(commitment)}",
            "ChargeFrequency": frequency,
            "EffectiveCost": _FREE,
            "PricingCategory": "Standard",
            "PricingCurrencyEffectiveCost": _FREE,
            "PricingQuantity": quantity,
            "PricingUnit": GPU_HOURS if recurring else "Commitments",
            "SkuId": f"commitment/{commitment.gpu_type}",
            "SkuMeter": "Commitment",
            "SkuPriceId": f"commitment/{commitment.id}/{'hourly' if recurring else 'upfront'}",
        }


def _clipped(commitment: Commitment, period: Period) -> Period:
    return Period(max(commitment.valid_from, period.start), min(commitment.valid_to, period.end))


def _unused(use: CommitmentUse, listed: ListPrice, length: int) -> Iterator[Row]:
    """Priced at nothing: list prices are those of what was used, so that the difference to the effective cost
    is what a commitment saves."""
    commitment = use.commitment
    sums: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for hour, nano in use.unused.items():
        used = commitment.committed(hour) - nano
        span_sums = sums[hour - hour % length]
        span_sums[0] += nano
        span_sums[1] += hourly(commitment, hour) - effective(commitment, hour, used)
    for start, (nano, cost) in sorted(sums.items()):
        prices = unit_prices(
            commitment.gpu_type, commitment.region, "reserved", commitment.rate_micros, start, listed
        )
        yield {
            **within(Period(start, start + length)),
            **_about(commitment),
            **sku("gpu", "GPU Time", commitment.gpu_type, commitment.region, prices),
            **gpu_time(0, prices),
            **discount(commitment.id, commitment.description, nano, status="Unused"),
            "ChargeDescription": f"Unused capacity of {_name(commitment)}",
            "ConsumedQuantity": None,
            "ConsumedUnit": None,
            "EffectiveCost": Fixed(cost, 15),
            "PricingCurrencyEffectiveCost": Fixed(cost, 15),
        }


def _name(commitment: Commitment) -> str:
    about = f" ({commitment.description})" if commitment.description else ""
    return f"commitment {commitment.id}{about}, {commitment.gpus} x {commitment.gpu_type}"


def _about(commitment: Commitment) -> Row:
    return {
        "RegionId": commitment.region or None,
        "RegionName": commitment.region or None,
        "ResourceId": f"commitment/{commitment.id}",
        "ResourceName": commitment.description or f"Commitment {commitment.id}",
        "ResourceType": "Commitment",
        "Tags": tags(commitment.gpu_type, "reserved"),
        "x_Bucket": "commitment",
        "x_CachedTokens": 0,
        "x_GpuHours": Fixed(0, 9),
        "x_GpuType": commitment.gpu_type,
        "x_InputTokens": 0,
        "x_OutputTokens": 0,
        "x_Requests": 0,
    }
