"""Columns that all rows of a FOCUS file share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from gateway.costs.cost_lines import CostLine
from gateway.costs.export.cells import Fixed, Row
from gateway.costs.periods import HOUR, instant, iso
from gateway.costs.periods import month as month_of

CATEGORY = {"on_demand": "Standard", "spot": "Dynamic", "reserved": "Committed"}
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


def priced(line: CostLine) -> int:
    """The line's rate. A file with missing prices is refused before."""
    assert line.rate_micros is not None
    return line.rate_micros


def hour(start: str) -> Row:
    return {"ChargePeriodStart": start, "ChargePeriodEnd": _hour_end(start)}


def costs(units: int) -> Row:
    """Billed, effective, contracted and list cost are equal: Florin has no discounts."""
    cost = Fixed(units, 15)
    names = ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "PricingCurrencyEffectiveCost")
    return dict.fromkeys(names, cost)


def unit_price(price: Fixed | None) -> Row:
    names = ("ListUnitPrice", "ContractedUnitPrice")
    return dict.fromkeys((*names, *(f"PricingCurrency{name}" for name in names)), price)


def gpu_time(nano: int, rate: int) -> Row:
    """Quantity, price and cost of GPU-time. Quantity times price is exactly the cost."""
    hours = Fixed(nano, 9)
    return {
        "PricingQuantity": hours,
        "PricingUnit": "GPU-Hours",
        "ConsumedQuantity": hours,
        "ConsumedUnit": "GPU-Hours",
        **unit_price(Fixed(rate, 6)),
        **costs(nano * rate),
    }


def sku(family: str, meter: str, gpu_type: str, region: str, purchase: str) -> Row:
    """`family` and GPU type identify the SKU; with region and purchase model, its price."""
    return {
        "SkuId": f"{family}/{gpu_type}",
        "SkuMeter": meter,
        "SkuPriceId": f"{family}/{gpu_type}/{region or 'any'}/{purchase}",
        "SkuPriceDetails": _details(gpu_type, region, purchase, meter),
        "PricingCategory": CATEGORY[purchase],
        "RegionId": region or None,
        "RegionName": region or None,
        "Tags": _tags(gpu_type, purchase),
    }


def object_text(**members: object) -> str:
    return json.dumps(members, ensure_ascii=True, separators=(",", ":"))


@lru_cache(maxsize=1024)
def _hour_end(start: str) -> str:
    return iso(instant("hour", start) + HOUR)


@lru_cache(maxsize=1024)
def _details(gpu_type: str, region: str, purchase: str, meter: str) -> str:
    about = {"x_GpuType": gpu_type, "x_Purchase": purchase, **({"x_Region": region} if region else {})}
    return object_text(**({"GpuCount": 1, **about} if meter == "GPU Time" else about))


@lru_cache(maxsize=1024)
def _tags(gpu_type: str, purchase: str) -> str:
    return object_text(**{"florin/gpu_type": gpu_type, "florin/purchase": purchase})
