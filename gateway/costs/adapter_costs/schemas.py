"""What adapters cost besides their requests: loads, and the slots that they hold."""

from __future__ import annotations

from pydantic import Field

from gateway.schemas.base import Answer
from gateway.schemas.finance import Complete, End, Hours, Money, Start


class AdapterCosts(Answer):
    requests: int
    cost: Money | None = Field(description="null: a price is missing.")
    loads: int
    load_cost: Money | None = Field(description="null without a calibration or a price.")
    slot_hours: Hours = Field(description="In which it held slots of engines.")
    slot_cost: Money | None = Field(
        description="These slots' equal share of the engines' cost. It is not spent additionally: an engine "
        "costs the same with an empty slot."
    )
    engines: int


class AdapterRow(AdapterCosts):
    adapter: str


class AdapterSums(AdapterCosts):
    adapters: int


class AdapterCostReport(Complete):
    currency: str | None
    start: Start
    to: End
    rows: tuple[AdapterRow, ...]
    rare: AdapterSums = Field(description="Adapters with fewer than ten requests a day.")
    total: AdapterSums
