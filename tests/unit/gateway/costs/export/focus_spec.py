"""What the FOCUS specification says of a cost and usage dataset's columns, versions 1.2 and 1.4: feature
level, whether null is allowed, data type, allowed values. Typed from its column pages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spec:
    level: str
    nullable: bool
    kind: str
    values: frozenset[str] = frozenset()


def _columns(text: str) -> dict[str, Spec]:
    found = {}
    for line in filter(None, text.splitlines()):
        name, level, nullable, kind, *values = (part.strip() for part in line.split("|"))
        allowed = frozenset(value.strip() for value in values[0].split(",")) if values else frozenset()
        found[name] = Spec(level, nullable == "null", kind, allowed)
    return found


_COMMON = """
AvailabilityZone | Recommended | null | String
BilledCost | Mandatory | not null | Decimal
BillingAccountId | Mandatory | not null | String
BillingAccountName | Mandatory | null | String
BillingAccountType | Conditional | not null | String
BillingCurrency | Mandatory | not null | String
BillingPeriodEnd | Mandatory | not null | Date/Time
BillingPeriodStart | Mandatory | not null | Date/Time
CapacityReservationId | Conditional | null | String
CapacityReservationStatus | Conditional | null | String | Used, Unused
ChargeCategory | Mandatory | not null | String | Usage, Purchase, Tax, Credit, Adjustment
ChargeClass | Mandatory | null | String | Correction
ChargeDescription | Mandatory | null | String
ChargeFrequency | Recommended | not null | String | One-Time, Recurring, Usage-Based
ChargePeriodEnd | Mandatory | not null | Date/Time
ChargePeriodStart | Mandatory | not null | Date/Time
CommitmentDiscountCategory | Conditional | null | String | Spend, Usage
CommitmentDiscountId | Conditional | null | String
CommitmentDiscountName | Conditional | null | String
CommitmentDiscountQuantity | Conditional | null | Decimal
CommitmentDiscountStatus | Conditional | null | String | Used, Unused
CommitmentDiscountType | Conditional | null | String
CommitmentDiscountUnit | Conditional | null | String
ConsumedQuantity | Conditional | null | Decimal
ConsumedUnit | Conditional | null | String
ContractedCost | Mandatory | not null | Decimal
ContractedUnitPrice | Conditional | null | Decimal
EffectiveCost | Mandatory | not null | Decimal
InvoiceIssuerName | Mandatory | not null | String
ListCost | Mandatory | not null | Decimal
ListUnitPrice | Conditional | null | Decimal
PricingCategory | Conditional | null | String | Standard, Dynamic, Committed, Other
PricingCurrency | Conditional | null | String
PricingCurrencyContractedUnitPrice | Conditional | null | Decimal
PricingCurrencyEffectiveCost | Conditional | null | Decimal
PricingCurrencyListUnitPrice | Conditional | null | Decimal
PricingQuantity | Mandatory | null | Decimal
PricingUnit | Mandatory | null | String
RegionId | Conditional | null | String
RegionName | Conditional | null | String
ResourceId | Conditional | null | String
ResourceName | Conditional | null | String
ResourceType | Conditional | null | String
ServiceCategory | Mandatory | not null | String | AI and Machine Learning
ServiceName | Mandatory | not null | String
ServiceSubcategory | Recommended | not null | String | Generative AI
SkuId | Conditional | null | String
SkuMeter | Conditional | null | String
SkuPriceDetails | Conditional | null | JSON
SkuPriceId | Conditional | null | String
SubAccountId | Conditional | null | String
SubAccountName | Conditional | null | String
SubAccountType | Conditional | null | String
Tags | Conditional | null | JSON
"""
"""Of the service categories only ours: the specification has one parent for each subcategory."""

SPECIFICATION = {
    "1.2": _columns(
        _COMMON
        + """
InvoiceId | Recommended | null | String
ProviderName | Mandatory | not null | String
PublisherName | Mandatory | not null | String
"""
    ),
    "1.4": _columns(
        _COMMON
        + """
AllocatedMethodDetails | Recommended | null | JSON
AllocatedMethodId | Conditional | null | String
AllocatedResourceId | Conditional | null | String
AllocatedResourceName | Conditional | null | String
AllocatedTags | Conditional | null | JSON
CommitmentProgramEligibilityDetails | Conditional | null | JSON
ContractApplied | Conditional | null | JSON
HostProviderName | Mandatory | not null | String
InvoiceDetailId | Mandatory | null | String
InvoiceId | Mandatory | null | String
ServiceProviderName | Mandatory | not null | String
"""
    ),
}

OURS = {
    "ChargeFrequency", "ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "ListUnitPrice",
    "PricingCategory", "RegionId", "RegionName", "ResourceId", "ResourceName", "ResourceType",
    "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId", "SubAccountId",
    "SubAccountName", "Tags",
}  # fmt: skip  # one name a line says no more
"""Conditional and recommended columns whose condition Florin meets."""
OURS_1_4 = {
    "AllocatedMethodDetails", "AllocatedMethodId", "AllocatedResourceId", "AllocatedResourceName", "AllocatedTags",
}  # fmt: skip

CONTRACT_COMMITMENT = _columns("""
BillingCurrency | Mandatory | null | String
ContractCommitmentApplicability | Mandatory | not null | JSON
ContractCommitmentBenefitCategory | Mandatory | not null | String | Discount, Monetary Pool, Availability, Other
ContractCommitmentCategory | Mandatory | not null | String | Spend, Usage
ContractCommitmentCost | Mandatory | null | Decimal
ContractCommitmentCreated | Mandatory | not null | Date/Time
ContractCommitmentDescription | Mandatory | null | String
ContractCommitmentDiscountPercentage | Mandatory | null | Decimal
ContractCommitmentDurationType | Mandatory | not null | String
ContractCommitmentFulfillmentInterval | Mandatory | not null | String | Hourly, Daily, Weekly, Monthly, Quarterly, Semi-Annual, Annual, Full Period, Transactional, Custom
ContractCommitmentId | Mandatory | not null | String
ContractCommitmentLastUpdated | Mandatory | not null | Date/Time
ContractCommitmentLifecycleStatus | Mandatory | not null | String | Proposed, Pending, Active, Exhausted, Expired, Canceled, Superseded
ContractCommitmentModel | Mandatory | not null | String | Continuous, Discontinuous
ContractCommitmentOfferCategory | Mandatory | not null | String | Public, Negotiated
ContractCommitmentPaymentInterval | Mandatory | not null | String | One-Time, Monthly, Quarterly, Semi-Annual, Annual, Custom
ContractCommitmentPaymentModel | Mandatory | not null | String | No Upfront, Partial Upfront, All Upfront
ContractCommitmentPaymentUpfrontPercentage | Conditional | not null | Decimal
ContractCommitmentPeriodEnd | Mandatory | not null | Date/Time
ContractCommitmentPeriodStart | Mandatory | not null | Date/Time
ContractCommitmentQuantity | Mandatory | null | Decimal
ContractCommitmentType | Mandatory | not null | String
ContractCommitmentUnit | Mandatory | null | String
ContractId | Mandatory | not null | String
ContractPeriodEnd | Mandatory | not null | Date/Time
ContractPeriodStart | Mandatory | not null | Date/Time
InvoiceIssuerName | Mandatory | not null | String
PricingCurrency | Conditional | not null | String
PricingCurrencyContractCommitmentCost | Conditional | null | Decimal
ServiceProviderName | Mandatory | not null | String
""")
"""Of the dataset of this name, version 1.4; that of 1.3 has thirteen of these. The conditions of PricingCurrency
and its cost, prices in another currency than bills, do not apply."""
