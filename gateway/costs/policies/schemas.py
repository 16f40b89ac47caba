"""Who pays for unused GPU time."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.schemas.base import Answer, StrictBody
from gateway.schemas.options import Option

StandingPolicy = Literal["none", "proportional", "even", "fixed", "default"]
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


class NewPolicy(StrictBody):
    policy: Annotated[
        StandingPolicy,
        Field(
            description="Who pays for idle time, spare capacity and start-up. A tenant's own policy is "
            "`none`, `proportional`, `even`, or `default` (the installation's)."
        ),
    ]
    shares: FixedShares = None
    shares_total: SharesTotal = None
    tenant: Annotated[
        str | None,
        Option(
            help="Only for this tenant: none, proportional, even or default. What it does not pay is not "
            "charged to other tenants."
        ),
        Field(max_length=200, description="Default: the installation, for all other tenants."),
    ] = None
    valid_from: Annotated[
        str | None,
        Option(flag="--from"),
        Field(description="First month, like `2026-11`. Default: the first open one."),
    ] = None
    reason: Annotated[
        str, Option(), Field(max_length=500, description="Why, for the history and the audit log.")
    ] = ""


class PolicyChange(Answer):
    tenant: str | None = Field(description="null: the installation.")
    policy: str
    shares: dict[str, int]
    valid_from: str
    recorded_at: str
    recorded_by: str = Field(description="Id of the key.")
    reason: str


class PolicyInForce(Answer):
    """Who pays for unused GPU time in a month. A tenant's key sees its own policy."""

    month: str
    policy: str
    frozen: Annotated[bool, Field(description="The month is closed, so this can no longer change.")]
    shares: dict[str, int] | None = None
    own: Annotated[dict[str, str] | None, Field(description="Tenants with policies of their own.")] = None
    history: Annotated[
        tuple[PolicyChange, ...] | None,
        Field(description="Every policy ever set, oldest first; tenant null: the installation's."),
    ] = None
    changed: Annotated[bool | None, Field(description="Whether it was set just now.")] = None
