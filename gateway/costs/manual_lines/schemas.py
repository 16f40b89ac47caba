"""Manual lines of statements: fees, charges, credits and refunds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.schemas.base import Answer, StrictBody
from gateway.schemas.options import Option

_Text = r"^[^\x00-\x1f\x7f]*$"
_Day = Annotated[str | None, Field(max_length=10, examples=["2026-11-15"])]
_Reason = Annotated[str, Field(min_length=1, max_length=300, pattern=_Text)]


class NewManualLine(StrictBody):
    kind: Annotated[Literal["fee", "charge", "credit", "refund"], Option()] = Field(
        description="A fee is charged every month, the others once: charge adds, credit and refund take off."
    )
    tenant: Annotated[str, Option()] = Field(min_length=1, max_length=100, description="Whom it is for.")
    amount: Annotated[str, Option(kind="decimal")] = Field(
        max_length=40,
        description="In the currency of the GPU prices, above 0, before tax; of a fee: per month.",
        examples=["250.00"],
    )
    reason: Annotated[_Reason, Option()] = Field(description="What it is for: shown on the statement.")
    adapter: Annotated[str | None, Option()] = Field(
        None,
        max_length=130,
        description="Of a fee for one adapter, which ends with it.",
        examples=["acme/support"],
    )
    begins: Annotated[_Day, Option(flag="--from")] = Field(
        None, description="First day of a fee, UTC. Default: today."
    )
    ends: Annotated[_Day, Option(flag="--until")] = Field(
        None, description="Last day of a fee, UTC. Default: it goes on."
    )
    prorated: Annotated[bool, Option(flag="--prorate")] = Field(
        False,
        description="Charge a fee by the day in the months in which it begins and ends. Otherwise these are "
        "charged in full.",
    )


class EndedFee(StrictBody):
    ends: Annotated[str, Option(flag="--until")] = Field(
        max_length=10, description="Last day of the fee, UTC.", examples=["2026-12-31"]
    )
    reason: Annotated[_Reason, Option()] = Field(description="Why it ends; kept in the audit log.")


class ManualLine(Answer):
    id: int
    kind: Literal["fee", "charge", "credit", "refund", "end"] = Field(description="`end`: of a fee.")
    tenant: str
    adapter: str | None
    amount: str = Field(description="Decimal; of a fee: per month.")
    reason: str
    begins: str | None
    ends: str | None
    prorated: bool
    fee: int | None = Field(description="Which fee ends.")
    month: str | None = Field(description="On whose statement a single line is.")
    state: Literal["pending", "approved", "withdrawn"] = Field(description="Only an approved line counts.")
    requested_at: str
    requested_by: str
    approved_at: str | None
    approved_by: str | None
    withdrawn_at: str | None
    withdrawn_by: str | None
