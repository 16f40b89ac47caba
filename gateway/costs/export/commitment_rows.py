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
from gateway.costs.periods import DAY, HOUR, Period

_FREE = Fixed(0, 15)


def rows(made: Committed, listed: ListPrice, granularity: Granularity) -> Iterator[Row]:
    """For the infrastructure dataset."""
    for one in made.uses:
        yield from _purchases(one, made.within)
        yield from _unused(one, listed, HOUR if granularity == "hourly" else DAY)


def beyond_the_books(made: Committed, charges: Iterable[Charge]) -> Iterator[Row]:
    """For the chargeback dataset, where covered time has the price book's cost: what each commitment is
    billed and costs beyond it. No tenant is charged for that. `charges`: all, as `covered` gives them."""
    books: defaultdict[int, int] = defaultdict(int)
    for charge in charges:
        if charge.covering is not None:
            books[charge.covering.id] += charge.line.nano_gpu_hours * charge.prices.paid
    for one in made.uses:
        commitment, held = one.commitment, books[one.commitment.id]
        billed = sum(amount for _, amount, _ in _payments(one, made.within)) - held
        hours = range(made.within.start, made.within.end, HOUR)
        effective_cost = sum(hourly(commitment, hour) for hour in hours) - held
        if billed or effective_cost:
            yield {
                **within(made.within),
                **_about(commitment),
                **costs(billed),
                "ChargeCategory": "Adjustment",
                "ChargeDescription": f"What {_name(commitment)} costs beyond the price of reserved GPU time",
                "ChargeFrequency": "Recurring",
                "EffectiveCost": Fixed(effective_cost, 15),
                "PricingCurrencyEffectiveCost": Fixed(effective_cost, 15),
                "SkuId": f"commitment/{commitment.gpu_type}",
                "SkuMeter": "Commitment",
                "SkuPriceId": f"commitment/{commitment.id}",
            }


def _payments(one: CommitmentUse, period: Period) -> Iterator[tuple[str, int, int]]:
    """How often, the amount in 10**-15 of the currency, and the nano-GPU-hours that it pays for."""
    commitment = one.commitment
    if one.committed and commitment.rate_micros:
        yield "Recurring", one.committed * commitment.rate_micros, one.committed
    if upfront(commitment) and period.start <= commitment.valid_from < period.end:
        term = commitment.valid_to - commitment.valid_from
        yield "One-Time", upfront(commitment), term * commitment.gpus * 10**9 // HOUR


def _purchases(one: CommitmentUse, period: Period) -> Iterator[Row]:
    commitment = one.commitment
    for frequency, amount, nano in _payments(one, period):
        recurring = frequency == "Recurring"
        quantity = Fixed(nano, 9) if recurring else Fixed(1, 0)
        price = Fixed(commitment.rate_micros, 6) if recurring else Fixed(amount // 10**9, 6)
        what = "Hourly payment" if recurring else "Upfront payment"
        yield {
            **within(_clipped(commitment, period)),
            **_about(commitment),
            **discount(commitment.id, commitment.description, status=None),
            **costs(amount),
            **unit_price(price),
            "ChargeCategory": "Purchase",
            "ChargeDescription": f"{what} for {_name(commitment)}",
            "ChargeFrequency": frequency,
            "CommitmentDiscountQuantity": Fixed(nano, 9),
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


def _unused(one: CommitmentUse, listed: ListPrice, length: int) -> Iterator[Row]:
    """Priced at nothing: list prices are those of what was used, so that the difference to the effective cost
    is what a commitment saves."""
    commitment = one.commitment
    sums: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for hour, nano in one.unused.items():
        used = commitment.committed(hour) - nano
        held = sums[hour - hour % length]
        held[0] += nano
        held[1] += hourly(commitment, hour) - effective(commitment, hour, used)
    for start, (nano, cost) in sorted(sums.items()):
        prices = unit_prices(
            commitment.gpu_type, commitment.region, "reserved", commitment.rate_micros, start, listed
        )
        yield {
            **within(Period(start, start + length)),
            **_about(commitment),
            **sku("gpu", "GPU Time", commitment.gpu_type, commitment.region, prices),
            **gpu_time(0, prices),
            **discount(commitment.id, commitment.description, status="Unused"),
            "ChargeDescription": f"Unused capacity of {_name(commitment)}",
            "CommitmentDiscountQuantity": Fixed(nano, 9),
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
