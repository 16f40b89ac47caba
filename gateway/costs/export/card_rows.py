"""Rows of a customer's own file that its rate card adds for a whole month: resident adapters, engines
that are dedicated, the free allowance, discounts and the minimum. The allowance's row has the tiers, too: by
how much the month's usage is cheaper than at list prices. And the lines that somebody added.

Allowance and discounts are credits, and the minimum is an adjustment: they have costs, but neither quantities
nor unit prices, which FOCUS wants to be positive, and so no SKU price, which would have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.costs.closing.documents import CreditDraw
from gateway.costs.export.cells import Fixed, Row
from gateway.costs.export.row_facts import object_text
from gateway.costs.manual_lines.lines import MonthLine
from gateway.costs.periods import iso, month_of
from gateway.costs.selling.cards import RateCard
from gateway.costs.selling.charges import (
    BATCH_SKU,
    DEDICATED_SKU,
    DISCOUNT_SKU,
    MINIMUM_SKU,
    RESIDENCY_SKU,
    MonthCharges,
    MonthCorrection,
    hours_price,
    line_sku,
    price_id,
)
from gateway.units import CENT

COLUMNS = {
    "input": "x_InputTokens",
    "cached": "x_CachedTokens",
    "output": "x_OutputTokens",
    "reasoning": "x_OutputTokens",
}
_UNIT_PRICES = ("ContractedUnitPrice", "ListUnitPrice")
_COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost", "PricingCurrencyEffectiveCost")
_ALLOWANCE_SKU = "free-allowance"
_KINDS = (
    (_ALLOWANCE_SKU, "Credit", "Free allowance"),
    (MINIMUM_SKU, "Adjustment", "Difference to the monthly minimum"),
    (BATCH_SKU, "Credit", "Discount on batches"),
    (DISCOUNT_SKU, "Credit", "Discount"),
)
"""SKU, category and description, in the order of `_adjusted`."""
_METERS = {
    _ALLOWANCE_SKU: "Free Allowance",
    MINIMUM_SKU: "Monthly Minimum",
    BATCH_SKU: "Batch Discount",
    DISCOUNT_SKU: "Discount",
}


def of_month(charges: MonthCharges, tenant: str, month: str) -> Iterator[Row]:
    card = charges.card
    resident = {
        adapter: (hours, line.per_hour, line.line.name)
        for line in charges.lines
        for adapter, hours in line.resident.items()
    }
    for adapter, (hours, per_hour, name) in sorted(resident.items()):
        yield {
            **_within(month),
            "ChargeClass": None,
            "ChargeDescription": f"Residency of {adapter}, rate card {card.name}",
            "ResourceId": adapter,
            "ResourceName": adapter,
            "ResourceType": "LoRA Adapter",
            **named(tenant),
            **sku(
                card,
                line_sku(RESIDENCY_SKU, name),
                price_id(card, "residency", name),
                "Adapter Residency",
            ),
            "PricingQuantity": Fixed(hours, 3),
            "PricingUnit": "Hours",
            "ConsumedQuantity": Fixed(hours, 3),
            "ConsumedUnit": "Hours",
            **unit_price(Fixed(per_hour, 6)),
            **costs(hours_price(per_hour, hours)),
            "x_Adapter": adapter,
            "x_Bucket": "residency",
            **no_tokens(tenant),
        }
    yield from _of_dedicated(charges, tenant, month)
    yield from _adjustments(card, _adjusted(charges), tenant, month)


def _of_dedicated(charges: MonthCharges, tenant: str, month: str) -> Iterator[Row]:
    card = charges.card
    for line in charges.lines:
        for gpu_type, hours in sorted(line.dedicated.items()):
            yield {
                **_within(month),
                "ChargeClass": None,
                "ChargeDescription": f"Dedicated {gpu_type} GPUs, rate card {card.name}",
                "ResourceId": f"dedicated/{gpu_type}",
                "ResourceName": gpu_type,
                "ResourceType": "GPU",
                **named(tenant),
                **sku(
                    card,
                    line_sku(DEDICATED_SKU, line.line.name),
                    price_id(card, "dedicated", line.line.name),
                    "Dedicated GPUs",
                ),
                "PricingQuantity": Fixed(hours, 3),
                "PricingUnit": "GPU-Hours",
                "ConsumedQuantity": Fixed(hours, 3),
                "ConsumedUnit": "GPU-Hours",
                **unit_price(Fixed(line.per_gpu_hour, 6)),
                **costs(hours_price(line.per_gpu_hour, hours)),
                "x_Bucket": "dedicated",
                **no_tokens(tenant),
                "x_GpuType": gpu_type,
            }


def of_lines(lines: Sequence[MonthLine], tenant: str, month: str) -> Iterator[Row]:
    """Fees, charges, credits and refunds that somebody added."""
    for line in lines:
        resource = line.adapter or tenant
        yield {
            **_within(month),
            "ChargeCategory": "Credit" if line.is_credit else "Adjustment",
            "ChargeClass": None,
            "ChargeDescription": line.reason,
            "ChargeFrequency": "Recurring" if line.kind == "fee" else "One-Time",
            "ResourceId": resource,
            "ResourceName": resource,
            "ResourceType": "LoRA Adapter" if line.adapter else "Tenant",
            **named(tenant),
            "SkuId": line.kind,
            "SkuMeter": line.kind.capitalize(),
            "Tags": object_text(),
            **costs(line.cents * CENT),
            "x_Adapter": line.adapter or None,
            "x_Bucket": "manual",
            **no_tokens(tenant),
        }


def of_credits(draws: Sequence[CreditDraw], tenant: str, month: str) -> Iterator[Row]:
    """What the month draws of prepaid credits."""
    for draw in draws:
        yield {
            **_within(month),
            "ChargeCategory": "Credit",
            "ChargeClass": None,
            "ChargeDescription": draw.reason,
            "ChargeFrequency": "Usage-Based",
            "ResourceId": tenant,
            "ResourceName": tenant,
            "ResourceType": "Tenant",
            **named(tenant),
            "SkuId": "prepaid-credit",
            "SkuMeter": "Prepaid Credit",
            "SkuPriceId": f"prepaid-credit/{draw.grant}",
            "Tags": object_text(),
            **costs(-draw.cents * CENT),
            "x_Bucket": "prepaid",
            **no_tokens(tenant),
        }


def of_correction(changed: MonthCorrection, tenant: str, month: str) -> Iterator[Row]:
    pairs = zip(_adjusted(changed.after), _adjusted(changed.before), strict=True)
    amounts = tuple(new - old for new, old in pairs)
    yield from _adjustments(changed.after.card, amounts, tenant, month, charge_class="Correction")


def _adjusted(charges: MonthCharges) -> tuple[int, ...]:
    """What allowance and tiers, minimum and discounts change."""
    return charges.used - charges.listed, charges.top_up, charges.batch_discount, charges.discount


def _adjustments(
    card: RateCard, amounts: tuple[int, ...], tenant: str, month: str, charge_class: str | None = None
) -> Iterator[Row]:
    for (name, category, text), amount in zip(_KINDS, amounts, strict=True):
        if amount:
            yield {
                **_within(month),
                "ChargeCategory": category if amount < 0 or charge_class else "Adjustment",
                "ChargeClass": charge_class,
                "ChargeDescription": f"{text}, rate card {card.name}",
                "ChargeFrequency": "Recurring",
                "ResourceId": f"rate-card/{card.name}",
                "ResourceName": card.name,
                "ResourceType": "Rate Card",
                **named(tenant),
                "SkuId": name,
                "SkuMeter": _METERS[name],
                "Tags": object_text(),
                **costs(amount),
                "x_Bucket": "rate_card",
                **no_tokens(tenant),
            }


def _within(month: str) -> Row:
    period = month_of(month)
    return {"ChargePeriodStart": iso(period.start), "ChargePeriodEnd": iso(period.end)}


def named(tenant: str) -> Row:
    return {"SubAccountId": tenant, "SubAccountName": tenant}


def unit_price(price: Fixed | None) -> Row:
    names = (*_UNIT_PRICES, *(f"PricingCurrency{name}" for name in _UNIT_PRICES))
    return dict.fromkeys(names, price)


def costs(amount: int) -> Row:
    """`amount`: in 10**-15 of the currency."""
    return dict.fromkeys(_COSTS, Fixed(amount, 15))


def sku(card: RateCard, name: str, price: str, meter: str) -> Row:
    return {
        "PricingCategory": "Standard",
        "SkuId": name,
        "SkuMeter": meter,
        "SkuPriceId": price,
        "SkuPriceDetails": object_text(x_RateCard=card.name, x_ValidFrom=card.valid_from),
        "Tags": object_text(),
    }


def no_tokens(tenant: str, requests: int = 0) -> Row:
    return {
        **dict.fromkeys(COLUMNS.values(), 0),
        "x_GpuType": "",
        "x_Requests": requests,
        "x_Tenant": tenant,
    }
