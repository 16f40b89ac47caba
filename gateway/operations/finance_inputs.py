"""Inputs of operations on prices, policies and months: typed, validated, and without unknown fields."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.schemas.base import StrictBody


class NewPrice(StrictBody):
    gpu_type: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$", description="As engines are labelled.")
    ]
    rate_per_gpu_hour: Annotated[
        str, Field(max_length=40, description="A decimal with at most six places.", examples=["2.50"])
    ]
    currency: Annotated[
        str,
        Field(pattern="^[A-Z]{3}$", description="The installation's currency: all prices have the same one."),
    ] = "USD"
    purchase: Annotated[
        Literal["on_demand", "spot", "reserved"], Field(description="How the GPUs are paid for.")
    ] = "on_demand"
    region: Annotated[
        str,
        Field(max_length=63, pattern=r"^[ -~]*$", description="Empty: every region without its own price."),
    ] = ""
    valid_from: Annotated[
        str | None,
        Field(
            description="ISO 8601, UTC. Default: the end of the last closed month for the first price of a "
            "series, and now for a later one."
        ),
    ] = None
    valid_to: Annotated[
        str | None, Field(description="Exclusive. Default: until the next price of the series.")
    ] = None
    speedup: Annotated[
        str | None,
        Field(
            max_length=40,
            description="Speed relative to the reference GPU; a decimal with at most three places.",
            examples=["2.5"],
        ),
    ] = None
    speedup_reference: Annotated[
        str | None, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$", description="A GPU type.")
    ] = None
    speedup_source: Annotated[
        str | None, Field(min_length=1, max_length=300, description="Who measured it, and how.")
    ] = None


class PriceCorrection(StrictBody):
    reason: Annotated[str, Field(min_length=1, max_length=300, description="Why, for the audit.")]
    gpu_type: Annotated[str | None, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$")] = None
    rate_per_gpu_hour: Annotated[
        str | None, Field(max_length=40, description="A decimal with at most six places.", examples=["2.50"])
    ] = None
    purchase: Literal["on_demand", "spot", "reserved"] | None = None
    region: Annotated[str | None, Field(max_length=63, pattern=r"^[ -~]*$")] = None
    valid_from: Annotated[str | None, Field(description="ISO 8601, UTC.")] = None
    valid_to: Annotated[str | None, Field(description="Exclusive.")] = None
    open_ended: Annotated[bool, Field(description="Removes `valid_to`.")] = False
    speedup: Annotated[str | None, Field(max_length=40)] = None
    speedup_reference: Annotated[str | None, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$")] = None
    speedup_source: Annotated[str | None, Field(min_length=1, max_length=300)] = None
    withdraw: Annotated[
        bool, Field(description="Withdraws the price, which should not have been added; nothing replaces it.")
    ] = False


class NewExchangeRate(StrictBody):
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$", description="One unit of it…", examples=["USD"])]
    target: Annotated[str, Field(pattern="^[A-Z]{3}$", description="…is worth this many of it.")]
    rate: Annotated[
        str,
        Field(max_length=40, description="A decimal above 0 with at most nine places.", examples=["0.92"]),
    ]
    valid_from: Annotated[
        str, Field(max_length=40, description="First day, UTC. Valid until the next of the same pair.")
    ]
    source: Annotated[str, Field(min_length=1, max_length=300, description="Who published it.")]
    reason: Annotated[
        str | None,
        Field(min_length=1, max_length=300, description="Why; required to replace the rate of the same day."),
    ] = None


FixedShares = Annotated[
    dict[str, Annotated[int, Field(ge=0, lt=10**9)]] | None,
    Field(
        description="For policy `fixed`: shares by tenant, in any proportion. The tenants must be known.",
        examples=[{"acme": 60, "bolt": 40}],
    ),
]
SharesTotal = Annotated[
    int | None,
    Field(ge=1, description="What the shares sum to, for example 100. Otherwise they are refused."),
]


class ClosingTerms(StrictBody):
    policy: Annotated[
        Literal["none", "proportional", "even", "fixed"] | None,
        Field(
            description="Who pays for idle time, spare capacity and start-up in this month, for all tenants. "
            "Default: the standing policy."
        ),
    ] = None
    shares: FixedShares = None
    shares_total: SharesTotal = None
    allow_missing_prices: Annotated[
        bool,
        Field(description="Charge nothing for unpriced GPU time; a price added later becomes a correction."),
    ] = False
    force: Annotated[
        bool,
        Field(
            description="Close within an hour of the month's end, although workers may still hold records."
        ),
    ] = False


class NewPolicy(StrictBody):
    policy: Annotated[
        Literal["none", "proportional", "even", "fixed", "default"],
        Field(
            description="Who pays for idle time, spare capacity and start-up. A tenant's own policy is "
            "`none`, `proportional`, `even`, or `default` (the installation's)."
        ),
    ]
    shares: FixedShares = None
    shares_total: SharesTotal = None
    tenant: Annotated[
        str | None, Field(max_length=200, description="Default: the installation, for all other tenants.")
    ] = None
    valid_from: Annotated[
        str | None, Field(description="First month, like `2026-11`. Default: the first open one.")
    ] = None
    reason: Annotated[str, Field(max_length=500, description="For the history and the audit log.")] = ""
