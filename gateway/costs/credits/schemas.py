"""Prepaid credits: grants, and the balance that they make up."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.costs.credits.grants import PRIORITY
from gateway.schemas.base import Answer, StrictBody
from gateway.schemas.options import Option

_Text = r"^[^\x00-\x1f\x7f]*$"
_Month = Annotated[str, Field(max_length=7, examples=["2026-11"])]


class NewGrant(StrictBody):
    tenant: Annotated[str, Option()] = Field(min_length=1, max_length=100, description="Whom it is for.")
    amount: Annotated[str, Option(kind="decimal")] = Field(
        max_length=40,
        description="In the currency of the GPU prices, above 0, before tax.",
        examples=["500.00"],
    )
    reason: Annotated[str, Option()] = Field(
        min_length=1, max_length=300, pattern=_Text, description="What it is for: shown on the statement."
    )
    begins: Annotated[_Month | None, Option(flag="--from", metavar="MONTH")] = Field(
        None, description="First month that it pays for. Default: the present one."
    )
    ends: Annotated[_Month | None, Option(flag="--until", metavar="MONTH")] = Field(
        None, description="Last month, with which what is left expires. Default: it does not expire."
    )
    priority: Annotated[int, Option()] = Field(
        PRIORITY,
        ge=0,
        le=100,
        description="The lowest is drawn first, then what expires first, then the oldest.",
    )
    reference: Annotated[str | None, Option(metavar="ID")] = Field(
        None,
        min_length=1,
        max_length=200,
        pattern=_Text,
        description="Id of the payment: the same one is granted once, however often it is sent.",
    )


class EndedGrant(StrictBody):
    ends: Annotated[_Month | None, Option(flag="--until", metavar="MONTH")] = Field(
        None, description="Last month, with which what is left expires. Default: the present one."
    )


class Grant(Answer):
    id: int
    tenant: str
    amount: str = Field(description="Decimal, before tax.")
    begins: str = Field(description="First month that it pays for.")
    ends: str | None = Field(description="Last one; null: it does not expire.")
    priority: int
    reason: str
    reference: str | None
    granted_at: str
    granted_by: str
    drawn: str = Field(description="By closed months.")


class TopUp(Answer):
    grant: int | None = Field(description="Its id; null: the event is about something else.")


class Balance(Answer):
    """A tenant's credits in a month that is open: what its statement would show now."""

    tenant: str
    month: str
    currency: str | None
    opening: str = Field(description="What earlier months left; those that are open, as they are now.")
    granted: str = Field(description="Grants that begin with the month.")
    drawn: str = Field(description="By the month's usage and fees so far.")
    expired: str = Field(description="What is left of grants that end with the month.")
    closing: str = Field(description="What is left for later months.")
