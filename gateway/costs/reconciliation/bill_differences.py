"""What the lines of a bill and Florin's observations differ in. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

KINDS: Mapping[str, tuple[bool, str]] = {
    "reserved_unused": (True, "reserved capacity that no engine used: paid under a commitment"),
    "never_registered": (True, "billed, but no engine of this name was ever registered"),
    "down": (True, "billed for hours in which the engine was down or not registered"),
    "partly_up": (True, "billed for full hours in which the engine was up only partly"),
    "rounding": (True, "rounded to whole minutes by the provider"),
    "not_billed": (True, "up according to Florin, but not billed"),
    "taken_back": (True, "hours credited by the provider"),
    "tax": (True, "taxes"),
    "credit": (True, "credits without GPU time"),
    "purchase": (True, "fees and upfront payments of commitments"),
    "adjustment": (True, "adjustments without GPU time"),
    "other_charges": (True, "usage charges without GPU time"),
    "rate": (True, "charged at a different rate than the price book's"),
    "cost_rounding": (True, "cost of each line rounded by the provider"),
    "no_price": (False, "no price in the price book for this time"),
    "other_currency": (False, "billed in a different currency than the price book's; not compared"),
    "billed_less": (False, "billed for fewer hours than the engine was up"),
    "more_than_time": (False, "billed for more hours than its GPUs have: billed twice, or for more GPUs"),
    "remaining": (False, "unknown cause (possibly a price that changed within an hour)"),
}
"""Kind of a difference → whether its cause is identified, and its description."""
MATCHED = {"reserved_unused"}
"""Kinds that Florin expects: they need nobody's acceptance."""


@dataclass(frozen=True, slots=True)
class BillDifference:
    kind: str
    nano: int
    """Billed less provisioned."""
    cost: Fraction
    """Billed less the cost by the price book."""
    hours: int
    """Number of hours affected; 0: none in particular."""
    first: int | None
    last: int | None
    """Start of the first and of the last of these hours."""

    @property
    def explained(self) -> bool:
        """Whether its cause is identified, which does not make it accepted."""
        return KINDS[self.kind][0]

    @property
    def matched(self) -> bool:
        return self.kind in MATCHED

    @property
    def reason(self) -> str:
        return KINDS[self.kind][1]


@dataclass(frozen=True, slots=True)
class BillAccount:
    """`billed_nano` - `provisioned_nano` and `billed_cost` - `own_cost` are the sums of `differences`."""

    engine: str
    """The engine, or a resource that no engine is named after; empty: all engines of the series."""
    gpu_type: str
    region: str
    purchase: str
    billed_nano: int
    provisioned_nano: int
    attributed_nano: int
    billed_cost: Fraction
    """In the price book's currency."""
    own_cost: Fraction
    other_currencies: Mapping[str, Fraction]
    differences: tuple[BillDifference, ...]
