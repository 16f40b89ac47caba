"""Prices of GPUs, and exchange rates."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.fleet.engines.schemas.registration import PURCHASES
from gateway.schemas.base import Answer, StrictBody
from gateway.schemas.finance import Currency, Money
from gateway.schemas.options import Option

_Text = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$")]
_Region = Annotated[str, Field(max_length=63, pattern=r"^[ -~]*$")]
_Amount = Annotated[str, Field(max_length=40)]
_Purchase = Literal["on_demand", "spot", "reserved"]


class NewPrice(StrictBody):
    gpu_type: Annotated[_Text, Option("GPU type")] = Field(description="GPU type, as engines are labelled.")
    rate_per_gpu_hour: Annotated[_Amount, Option("Price per GPU-hour", flag="--rate", kind="decimal")] = (
        Field(description="A decimal with at most six places.", examples=["2.50"])
    )
    currency: Annotated[Currency, Option()] = Field(
        "USD", description="Three-letter code of the installation's currency: all prices have the same one."
    )
    purchase: Annotated[_Purchase, Option(choices=PURCHASES)] = Field(
        "on_demand", description="How the GPUs are paid for."
    )
    region: Annotated[_Region, Option()] = Field("", description="Empty: every region without its own price.")
    valid_from: Annotated[str | None, Option("From", flag="--from")] = Field(
        None,
        description="Start of validity, ISO 8601, UTC. Default: the end of the last closed month for the "
        "first price of a series, and now for a later one.",
    )
    valid_to: Annotated[str | None, Option(flag="--to")] = Field(
        None, description="End of validity, exclusive. Default: until the next price of the series."
    )
    speedup: Annotated[_Amount | None, Option(kind="decimal")] = Field(
        None,
        description="Speed relative to the reference GPU; a decimal with at most three places.",
        examples=["2.5"],
    )
    speedup_reference: Annotated[_Text | None, Option(flag="--reference")] = Field(
        None, description="The GPU type that the speedup is relative to."
    )
    speedup_source: Annotated[str | None, Option()] = Field(
        None, min_length=1, max_length=300, description="Who measured it, and how."
    )


class PriceCorrection(StrictBody):
    reason: Annotated[str, Option()] = Field(
        min_length=1, max_length=300, description="Why, kept with the price and in the audit log."
    )
    gpu_type: Annotated[_Text | None, Option()] = Field(None, description="The right GPU type.")
    rate_per_gpu_hour: Annotated[_Amount | None, Option(flag="--rate", kind="decimal")] = Field(
        None,
        description="The right rate per GPU-hour: a decimal with at most six places.",
        examples=["2.50"],
    )
    purchase: Annotated[_Purchase | None, Option()] = Field(None, description="The right purchase model.")
    region: Annotated[_Region | None, Option()] = Field(
        None, description="The right region; empty for a price of all regions."
    )
    valid_from: Annotated[str | None, Option(flag="--from")] = Field(
        None, description="The right start of validity, ISO 8601, UTC."
    )
    valid_to: Annotated[str | None, Option(flag="--to")] = Field(
        None, description="The right end of validity, exclusive."
    )
    open_ended: Annotated[bool, Option()] = Field(
        default=False, description="Removes the end: the price is valid until the next one."
    )
    speedup: Annotated[_Amount | None, Option(kind="decimal")] = Field(
        None, description="The right speed relative to the reference GPU."
    )
    speedup_reference: Annotated[_Text | None, Option(flag="--reference")] = Field(
        None, description="The GPU type that the speedup is relative to."
    )
    speedup_source: Annotated[str | None, Option()] = Field(
        None, min_length=1, max_length=300, description="Who measured it, and how."
    )
    withdraw: Annotated[bool, Option()] = Field(
        default=False,
        description="Withdraws the price, which should not have been added; nothing replaces it.",
    )


class NewExchangeRate(StrictBody):
    currency: Annotated[Currency, Option("One unit of", flag="--from")] = Field(
        description="One unit of this currency…", examples=["USD"]
    )
    target: Annotated[Currency, Option("Is worth this many", flag="--to")] = Field(
        description="…is worth the rate of this one.", examples=["EUR"]
    )
    rate: Annotated[_Amount, Option()] = Field(
        description="A decimal above 0 with at most nine places.", examples=["0.92"]
    )
    valid_from: Annotated[str, Option("First day", flag="--date")] = Field(
        max_length=40, description="First day, UTC. Valid until the next rate of the same pair."
    )
    source: Annotated[str, Option("Who published it")] = Field(
        min_length=1, max_length=300, description="Who published it."
    )
    reason: Annotated[str | None, Option("Why it replaces that day's rate")] = Field(
        None,
        min_length=1,
        max_length=300,
        description="Required to replace the rate that this day already has: why.",
    )


class Price(Answer):
    """A row of the price book. Rows are never edited."""

    id: int
    gpu_type: str
    rate_per_gpu_hour: Money
    currency: str
    purchase: _Purchase
    region: str = Field(description="Empty: every region without its own price.")
    valid_from: str
    valid_to: str | None = Field(description="Exclusive; null: until the next price of the series.")
    recorded_at: str
    speedup: str | None = Field(description="Relative to `speedup_reference`.")
    speedup_reference: str | None
    speedup_source: str | None
    supersedes: int | None = Field(description="The price that it corrects.")
    withdrawn: bool
    reason: str | None


class AddedPrice(Price):
    warnings: tuple[str, ...] = Field(
        description="What may be a slip: a GPU type that no engine has, or that the book spells differently; "
        "and the times for which engines of its region and purchase model have no price."
    )


class ListedPrice(Price):
    superseded_by: int | None = Field(None, description="In the history: the price that corrects it.")


class ExchangeRate(Answer):
    id: int
    currency: str
    target: str
    rate: str = Field(description="What one unit of `currency` is worth in `target`.")
    valid_from: str
    recorded_at: str
    source: str
    reason: str | None
