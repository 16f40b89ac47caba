"""A tenant's own file: its chargeback without what a GPU-hour costs the operator.

Tokens are priced per million, GPU-time without tokens by the period. There are no unit prices, so that the
GPU's price cannot be computed from them, and list and contracted cost are what the tenant is charged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.costs.export.cells import Fixed, Row
from gateway.costs.export.columns import HIDDEN

_ONE = Fixed(1, 0)
_COSTS = ("ContractedCost", "EffectiveCost", "ListCost", "PricingCurrencyEffectiveCost")


def rows(charges: Iterable[Row], granularity: str) -> Iterator[Row]:
    """`charges`: rows of the chargeback."""
    unit = {"hourly": "Hours", "daily": "Days"}[granularity]
    for charge in charges:
        kept = {name: cell for name, cell in charge.items() if name not in HIDDEN}
        consumed = charge["ConsumedQuantity"]
        if charge["ConsumedUnit"] == "Tokens" and isinstance(consumed, Fixed):
            measured: Row = {"PricingQuantity": Fixed(consumed.units, 6), "PricingUnit": "1000000 Tokens"}
        else:
            period = "Months" if charge["x_Bucket"] == "allocated" else unit
            measured = {"PricingQuantity": _ONE, "PricingUnit": period}
            measured |= {"ConsumedQuantity": _ONE, "ConsumedUnit": period}
        yield {**kept, **measured, **dict.fromkeys(_COSTS, charge["BilledCost"])}
