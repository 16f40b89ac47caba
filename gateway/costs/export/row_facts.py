"""Columns that all rows of a FOCUS file share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from gateway.costs.export.cells import Fixed, Row
from gateway.costs.export.charges import UnitPrices
from gateway.costs.periods import iso, month_of

CATEGORY = {"on_demand": "Standard", "spot": "Dynamic", "reserved": "Committed"}
GPU_HOURS = "GPU-Hours"
PURCHASE = {"on_demand": "on demand", "spot": "spot", "reserved": "reserved"}


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What all rows of a file share."""

    month: str
    currency: str
    issuer: str

    def constants(self) -> Row:
        """Columns that are constant within a file, for both versions."""
        period = month_of(self.month)
        return {
            "BillingAccountId": "florin",
            "BillingAccountName": self.issuer,
            "BillingCurrency": self.currency,
            "BillingPeriodStart": iso(period.start),
            "BillingPeriodEnd": iso(period.end),
            "ChargeCategory": "Usage",
            "ChargeFrequency": "Usage-Based",
            "HostProviderName": self.issuer,
            "InvoiceIssuerName": self.issuer,
            "PricingCurrency": self.currency,
            "ProviderName": self.issuer,
            "PublisherName": self.issuer,
            "ServiceCategory": "AI and Machine Learning",
            "ServiceName": "LLM Inference",
            "ServiceProviderName": self.issuer,
            "ServiceSubcategory": "Generative AI",
        }


def gpu_time(nano: int, prices: UnitPrices) -> Row:
    """Quantity, prices and costs of GPU time. Quantity times a unit price is exactly its cost."""
    hours = Fixed(nano, 9)
    paid = Fixed(nano * prices.paid, 15)
    unit = {
        "ContractedUnitPrice": Fixed(prices.contracted, 6),
        "ListUnitPrice": Fixed(prices.list, 6),
    }
    return {
        "PricingQuantity": hours,
        "PricingUnit": GPU_HOURS,
        "ConsumedQuantity": hours,
        "ConsumedUnit": GPU_HOURS,
        **unit,
        **{f"PricingCurrency{name}": price for name, price in unit.items()},
        "BilledCost": paid,
        "ContractedCost": Fixed(nano * prices.contracted, 15),
        "EffectiveCost": paid,
        "ListCost": Fixed(nano * prices.list, 15),
        "PricingCurrencyEffectiveCost": paid,
        **({"CommitmentDiscountQuantity": hours} if prices.purchase == "reserved" else {}),
    }


def sku(family: str, meter: str, gpu_type: str, region: str, prices: UnitPrices) -> Row:
    """`family` and GPU type identify the SKU; with region, purchase model and list price, its price. So each
    SkuPriceId has one list price."""
    purchase = prices.purchase
    place = f"{gpu_type}/{region or 'any'}"
    return {
        "SkuId": f"{family}/{gpu_type}",
        "SkuMeter": meter,
        "SkuPriceId": f"{family}/{place}/{purchase}@{Fixed(prices.list, 6)}",
        "SkuPriceDetails": _details(gpu_type, region, purchase, meter),
        "PricingCategory": CATEGORY[purchase],
        "RegionId": region or None,
        "RegionName": region or None,
        **(_commitment(gpu_type, region) if purchase == "reserved" else {}),
    }


def _commitment(gpu_type: str, region: str) -> Row:
    """What an engine on reserved capacity draws on. It is used whenever the engine is up, idle or not."""
    where = f" in {region}" if region else ""
    return _discount(f"reserved/{gpu_type}/{region or 'any'}", f"Reserved {gpu_type}{where}", "Used")


def commitment_id(number: int) -> str:
    return f"commitment/{number}"


def discount(number: int, description: str, nano: int, *, status: str | None = "Used") -> Row:
    """The columns of a recorded commitment and of so much of it. `status`: None for its purchase."""
    name, hours = commitment_id(number), Fixed(nano, 9)
    return {
        **_discount(name, description or f"Commitment {number}", status),
        "CommitmentDiscountQuantity": hours,
        # Built as text, since a float would not be exact.
        "ContractApplied": f'{{"Elements":[{{"ContractId":"{name}","ContractCommitmentId":"{name}",'
        f'"ContractCommitmentAppliedQuantity":{hours},"ContractCommitmentAppliedUnit":"{GPU_HOURS}"}}]}}',
    }


def _discount(identity: str, name: str, status: str | None) -> Row:
    return {
        "CommitmentDiscountCategory": "Usage",
        "CommitmentDiscountId": identity,
        "CommitmentDiscountName": name,
        "CommitmentDiscountStatus": status,
        "CommitmentDiscountType": "Reserved Capacity",
        "CommitmentDiscountUnit": GPU_HOURS,
    }


def tags(gpu_type: str, purchase: str, **more: str) -> str:
    """`more`: tags without their prefix; empty ones are left out."""
    names = {"gpu_type": gpu_type, "purchase": purchase, **more}
    return object_text(**{f"florin/{name}": value for name, value in names.items() if value})


def object_text(**members: object) -> str:
    return json.dumps(members, ensure_ascii=True, separators=(",", ":"))


@lru_cache(maxsize=1024)
def _details(gpu_type: str, region: str, purchase: str, meter: str) -> str:
    about = {"x_GpuType": gpu_type, "x_Purchase": purchase, **({"x_Region": region} if region else {})}
    return object_text(**({"GpuCount": 1, **about} if meter == "GPU Time" else about))
