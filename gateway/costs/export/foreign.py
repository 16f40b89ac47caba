"""Files in the formats that other FinOps tools import, made of the rows of FOCUS 1.2, so that they sum to the
same billed cost.

- `vantage`: the subset of FOCUS that Vantage takes as the costs of a custom provider.
- `cloudzero`: CloudZero's Common Bill Format, for an AnyCost connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gateway.costs.export.cells import Cell, Row
from gateway.costs.export.columns import Column

_VANTAGE = (
    Column("ChargePeriodStart", "text"),
    Column("ChargeCategory", "text"),
    Column("BilledCost", "cost"),
    Column("BillingCurrency", "text"),
    Column("ConsumedQuantity", "quantity", nullable=True),
    Column("ConsumedUnit", "text", nullable=True),
    Column("RegionId", "text", nullable=True),
    Column("ResourceId", "text"),
    Column("ResourceType", "text"),
    Column("ServiceCategory", "text"),
    Column("ServiceName", "text"),
    Column("Tags", "json"),
)
"""Without the end of the charge period: with one, Vantage takes the cost as one to spread over days."""
_TAGS = {
    "resource/tag:tenant": "x_Tenant",
    "resource/tag:adapter": "x_Adapter",
    "resource/tag:version": "x_AdapterVersion",
    "resource/tag:base_model": "x_BaseModel",
    "resource/tag:gpu_type": "x_GpuType",
    "resource/tag:bucket": "x_Bucket",
}
_FROM = {
    "lineitem/description": "ChargeDescription",
    "time/usage_start": "ChargePeriodStart",
    "resource/id": "ResourceId",
    "resource/service": "ServiceName",
    "resource/account": "SubAccountId",
    "resource/region": "RegionId",
    "resource/usage_family": "ResourceType",
    "action/usage_type": "SkuMeter",
    "usage/amount": "ConsumedQuantity",
    "usage/units": "ConsumedUnit",
    **_TAGS,
    "cost/cost": "BilledCost",
    "cost/amortized_cost": "EffectiveCost",
    "cost/on_demand_cost": "ListCost",
}
"""Column of the Common Bill Format → that of FOCUS."""
_COSTS = {"cost/cost", "cost/amortized_cost", "cost/on_demand_cost"}
_CLOUDZERO = (
    Column("lineitem/type", "text"),
    *(Column(name, "cost" if name in _COSTS else "text", nullable=True) for name in _FROM),
)


def _vantage(row: Row) -> Row:
    """It knows neither purchases nor adjustments."""
    cells = {column.name: row.get(column.name) for column in _VANTAGE}
    category = "Credit" if row["ChargeCategory"] == "Credit" else "Usage"
    return {**cells, "ChargeCategory": category, "ChargePeriodStart": str(row["ChargePeriodStart"])[:10]}


def _cloudzero(row: Row) -> Row:
    cells: dict[str, Cell] = {name: row.get(column) for name, column in _FROM.items()}
    cells["lineitem/type"] = "Discount" if row["ChargeCategory"] == "Credit" else "Usage"
    cells["resource/account"] = cells["resource/account"] or row["BillingAccountId"]
    return cells


@dataclass(frozen=True, slots=True)
class Foreign:
    columns: tuple[Column, ...]
    convert: Callable[[Row], Row]
    """A row of FOCUS 1.2, with all of its columns."""

    def rows(self, rows: Iterable[Row], constants: Row) -> Iterator[Row]:
        for row in rows:
            yield self.convert({**constants, **row})


FOREIGN = {"vantage": Foreign(_VANTAGE, _vantage), "cloudzero": Foreign(_CLOUDZERO, _cloudzero)}
"""By format."""
MOST_CLOUDZERO_ROWS = 1_000_000
"""The most rows of a file."""
