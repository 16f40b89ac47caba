"""The columns of each file, as data. FOCUS columns have the names and types of versions 1.2 and 1.4 of the
specification. Custom columns start with `x_` and come last, as it requires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "json", "time", "integer", "boolean", "cost", "quantity", "price"]

PLACES: dict[Kind, int] = {"cost": 15, "quantity": 9, "price": 6}
"""Decimal places. A cost is nano-GPU-hours times millionths: 15 places."""

Granularity = Literal["hourly", "daily"]
GRANULARITIES: tuple[Granularity, ...] = ("hourly", "daily")
Dataset = Literal["infrastructure", "chargeback", "charges", "commitments"]
DATASETS: tuple[Dataset, ...] = ("infrastructure", "chargeback", "charges", "commitments")
FOCUS_VERSIONS = ("1.2", "1.4")
Format = Literal["focus-1.2", "focus-1.4", "csv", "parquet", "vantage", "cloudzero"]
FORMATS: tuple[Format, ...] = ("focus-1.2", "focus-1.4", "csv", "parquet", "vantage", "cloudzero")


DEFAULT_FORMATS: Mapping[str, Format] = {"charges": "csv", "commitments": "focus-1.4"}
"""Any other dataset: focus-1.2."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind
    nullable: bool = False
    values: frozenset[str] = frozenset()
    """Allowed values; empty: any of its kind."""
    versions: tuple[str, ...] = FOCUS_VERSIONS


def _one_of(name: str, *values: str, nullable: bool = False) -> Column:
    return Column(name, "text", nullable=nullable, values=frozenset(values))


_BOTH = (
    Column("BilledCost", "cost"),
    Column("BillingAccountId", "text"),
    Column("BillingAccountName", "text"),
    Column("BillingCurrency", "text"),
    Column("BillingPeriodEnd", "time"),
    Column("BillingPeriodStart", "time"),
    _one_of("ChargeCategory", "Usage", "Purchase", "Credit", "Adjustment"),
    _one_of("ChargeClass", "Correction", nullable=True),
    Column("ChargeDescription", "text"),
    _one_of("ChargeFrequency", "Usage-Based", "Recurring", "One-Time"),
    Column("ChargePeriodEnd", "time"),
    Column("ChargePeriodStart", "time"),
    # Of engines on reserved capacity, and of recorded commitments.
    _one_of("CommitmentDiscountCategory", "Usage", nullable=True),
    Column("CommitmentDiscountId", "text", nullable=True),
    Column("CommitmentDiscountName", "text", nullable=True),
    Column("CommitmentDiscountQuantity", "quantity", nullable=True),
    _one_of("CommitmentDiscountStatus", "Used", "Unused", nullable=True),
    Column("CommitmentDiscountType", "text", nullable=True),
    _one_of("CommitmentDiscountUnit", "GPU-Hours", nullable=True),
    Column("ConsumedQuantity", "quantity", nullable=True),
    _one_of("ConsumedUnit", "GPU-Hours", "Tokens", "Requests", "Hours", "Days", "Months", nullable=True),
    # Of recorded commitments.
    Column("ContractApplied", "json", nullable=True, versions=("1.4",)),
    Column("ContractedCost", "cost"),
    Column("ContractedUnitPrice", "price", nullable=True),
    Column("EffectiveCost", "cost"),
    Column("HostProviderName", "text", versions=("1.4",)),
    # Of a customer's rows once its statement is issued. (The validator's rules InvoiceId-C-004 and C-005
    # require null and non-null for the same charge.)
    Column("InvoiceDetailId", "text", nullable=True, versions=("1.4",)),
    Column("InvoiceId", "text", nullable=True),
    Column("InvoiceIssuerName", "text"),
    Column("ListCost", "cost"),
    Column("ListUnitPrice", "price", nullable=True),
    _one_of("PricingCategory", "Standard", "Dynamic", "Committed", nullable=True),
    # Billing is in the price book's currency; the 1.2 validator requires these if list prices are given.
    Column("PricingCurrency", "text", versions=("1.2",)),
    Column("PricingCurrencyContractedUnitPrice", "price", nullable=True, versions=("1.2",)),
    Column("PricingCurrencyEffectiveCost", "cost", versions=("1.2",)),
    Column("PricingCurrencyListUnitPrice", "price", nullable=True, versions=("1.2",)),
    Column("PricingQuantity", "quantity", nullable=True),
    _one_of(
        "PricingUnit",
        *("GPU-Hours", "1000000 Tokens", "Requests", "Hours", "Days", "Months", "Commitments"),
        nullable=True,
    ),
    Column("ProviderName", "text", versions=("1.2",)),
    Column("PublisherName", "text", versions=("1.2",)),
    Column("RegionId", "text", nullable=True),
    Column("RegionName", "text", nullable=True),
    Column("ResourceId", "text"),
    Column("ResourceName", "text"),
    _one_of(
        "ResourceType",
        *("GPU Engine", "LoRA Adapter", "Base Model", "GPU Pool", "Rate Card", "Commitment", "Tenant"),
    ),
    _one_of("ServiceCategory", "AI and Machine Learning"),
    Column("ServiceName", "text"),
    Column("ServiceProviderName", "text", versions=("1.4",)),
    _one_of("ServiceSubcategory", "Generative AI"),
    Column("SkuId", "text"),
    _one_of(
        "SkuMeter",
        *("GPU Time", "Input Tokens", "Cached Input Tokens", "Output Tokens", "Reasoning Tokens", "Requests"),
        *(
            "Adapter Residency",
            "Commitment",
            "Free Allowance",
            "Monthly Minimum",
            "Batch Discount",
            "Discount",
        ),
        *("Fee", "Charge", "Credit", "Refund"),
        nullable=True,
    ),
    Column("SkuPriceDetails", "json", nullable=True),
    Column("SkuPriceId", "text", nullable=True),
    Column("SubAccountId", "text", nullable=True),
    Column("SubAccountName", "text", nullable=True),
    Column("Tags", "json"),
)
_ALLOCATED = (
    Column("AllocatedMethodDetails", "json", nullable=True, versions=("1.4",)),
    Column("AllocatedMethodId", "text", nullable=True, versions=("1.4",)),
    Column("AllocatedResourceId", "text", nullable=True, versions=("1.4",)),
    Column("AllocatedResourceName", "text", nullable=True, versions=("1.4",)),
    Column("AllocatedTags", "json", nullable=True, versions=("1.4",)),
)
_OWN = (
    Column("x_Adapter", "text", nullable=True),
    Column("x_AdapterVersion", "text", nullable=True),
    Column("x_BaseModel", "text", nullable=True),
    Column("x_Bucket", "text"),
    Column("x_CachedTokens", "integer"),
    Column("x_GpuHours", "quantity"),
    Column("x_GpuType", "text"),
    Column("x_InputTokens", "integer"),
    Column("x_OutputTokens", "integer"),
    Column("x_Requests", "integer"),
    Column("x_Tenant", "text", nullable=True),
)
_LINES = (
    Column("month", "text"),
    Column("hour", "time"),
    Column("engine", "text", nullable=True),
    Column("gpu_type", "text", nullable=True),
    Column("region", "text", nullable=True),
    Column("purchase", "text"),
    Column("tenant", "text", nullable=True),
    Column("adapter", "text", nullable=True),
    Column("version", "text", nullable=True),
    Column("base_model", "text", nullable=True),
    Column("bucket", "text"),
    Column("correction", "boolean"),
    Column("calibration", "integer"),
    Column("requests", "integer"),
    Column("prompt_tokens", "integer"),
    Column("cached_tokens", "integer"),
    Column("completion_tokens", "integer"),
    Column("reasoning_tokens", "integer"),
    Column("gpu_hours", "quantity"),
    Column("rate_per_gpu_hour", "price", nullable=True),
    Column("cost", "cost", nullable=True),
    Column("currency", "text", nullable=True),
)


def focus(version: str) -> tuple[Column, ...]:
    """Columns of a row in either dataset."""
    named = sorted((*_BOTH, *_ALLOCATED), key=lambda column: column.name)
    return tuple(column for column in (*named, *_OWN) if version in column.versions)


def plain() -> tuple[Column, ...]:
    """Columns of a ledger line."""
    return _LINES
