"""Usage records, and what one request cost."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.schemas.base import Answer
from gateway.schemas.finance import Complete, End, Money, Start, UsageRecord


class UsagePage(Complete):
    data: tuple[UsageRecord, ...]
    start: Start
    to: End
    next: str | None = Field(description="For `after`; null on the last page.")


class RequestUsage(Complete):
    """One record for each attempt, in order."""

    data: tuple[UsageRecord, ...]
    request_id: str


class RequestShare(Answer):
    """What an attempt took of one engine-hour."""

    attempt: int
    billable: bool
    nano_gpu_hours: int
    cost: Money | None = Field(description="null: a price is missing.")


class RequestCost(Complete):
    request_id: str
    currency: str | None
    priced_by: Literal["cost", "rate_card"] = Field(
        description="`rate_card`: the price of the tokens, before the month's free allowance, minimum and "
        "discounts."
    )
    pending: Literal["", "records_removed", "hour_set_aside", "hour_not_over", "hour_not_computed"] = Field(
        description="Why the amount is not that of the report; empty: it is. `hour_not_over`: others will "
        "share the hour; `hour_not_computed`: the ledger has news of it; `hour_set_aside`: the hour cannot "
        "be computed, and is left out; `records_removed`: others' records of an hour are past retention; it "
        "is left out for good."
    )
    cost: Money | None = Field(
        description="null: a price is missing, nothing is left, or a card applies to only a part of it."
    )
    retry_waste: Money | None = Field(
        None, description="What attempts cost that were not delivered. For staff."
    )
    shares: tuple[RequestShare, ...] | None = Field(None, description="For staff.")
