"""The totals of a report: the whole, utilization and unit prices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, select

from gateway.costs.allocation import UNUSED, Allocated
from gateway.costs.cost_lines import CostLine
from gateway.costs.periods import iso
from gateway.costs.prices.book import Series
from gateway.costs.reports.figures import gpu_time, partial
from gateway.costs.reports.unit_prices import unit_prices
from gateway.costs.rollups.token_weights import Weights
from gateway.metering.ledger.schema import calibrations
from gateway.units import NOTHING, Amount, NanoHours, gpu_hours_text, total

_WORKED = ("usage", "retry_waste")
_BUSY = (*_WORKED, "headroom")


def of_everything(
    connection: Connection, facts: Iterable[CostLine], corrected: Iterable[CostLine]
) -> dict[str, Any]:
    """`facts`: all lines except `corrected`, the corrections that are shown separately. Corrections belong to
    other months: they are part of the whole, but not of this month's utilization."""
    used = [line for line in facts if line.gpu_type]
    return {
        "provisioned": _time([*used, *corrected]),
        "utilization": _utilization(used),
        "unit_prices": [prices.document() for prices in unit_prices(used, _weights(connection, used))],
    }


def unallocated(lines: Iterable[CostLine], allocated: Allocated) -> dict[str, Any]:
    """Unused time that is not allocated."""
    unused = [line for line in lines if line.bucket in UNUSED]
    costs = [line.cost for line in unused]
    costs += [None if rate is None else Amount(-nano * rate) for (*_, rate), nano in allocated.items()]
    left = total(line.nano_gpu_hours for line in unused) - sum(allocated.values())
    return gpu_time(NanoHours(left), _sum(costs))


def _sum(costs: Iterable[Amount | None]) -> Amount | None:
    known = list(costs)
    return None if None in known else total(cost for cost in known if cost)


def _time(lines: Iterable[CostLine]) -> dict[str, Any]:
    used = [line for line in lines if line.nano_gpu_hours]
    cost = _sum(line.cost for line in used)
    time = gpu_time(total(line.nano_gpu_hours for line in used), cost)
    if cost is not None:
        return time
    unpriced = total(line.nano_gpu_hours for line in used if line.cost is None)
    return {**time, **partial(total(line.cost or NOTHING for line in used), unpriced)}


def _utilization(facts: Sequence[CostLine]) -> list[dict[str, Any]]:
    """By GPU type: the busy share of the provisioned time, and the cost of the unused time."""
    rows = []
    for gpu_type in sorted({line.gpu_type for line in facts}):
        here = [line for line in facts if line.gpu_type == gpu_type]
        busy = total(line.nano_gpu_hours for line in here if line.bucket in _BUSY)
        provisioned = total(line.nano_gpu_hours for line in here)
        unused = _time(line for line in here if line.bucket not in _BUSY)
        rows.append(
            {
                "gpu_type": gpu_type,
                "provisioned_gpu_hours": gpu_hours_text(provisioned),
                "busy_gpu_hours": gpu_hours_text(busy),
                "utilization": round(busy / provisioned, 6) if provisioned > 0 else None,
                "idleness_gpu_hours": unused["gpu_hours"],
                "idleness_cost": unused["cost"],
            }
        )
    return rows


def missing_prices(facts: Iterable[CostLine], unpriced: frozenset[Series]) -> list[dict[str, str]]:
    """The prices that are needed but missing, and the GPU-hours that no amount includes because of it."""
    missing: dict[Series, NanoHours] = {}
    for line in facts:
        if line.bucket != "rejected" and (line.rate_micros is None or line.series in unpriced):
            nano = line.nano_gpu_hours if not line.rate_micros else 0
            missing[line.series] = NanoHours(missing.get(line.series, 0) + nano)
    return [
        {
            **dict(zip(("gpu_type", "region", "purchase"), series, strict=True)),
            "gpu_hours": gpu_hours_text(nano),
        }
        for series, nano in sorted(missing.items())
    ]


def made_with(connection: Connection, facts: Iterable[CostLine]) -> dict[str, Any]:
    """The weights by which attempts shared GPU time."""
    used = {line.calibration for line in facts if line.bucket in _WORKED}
    names = ("id", "gpu_type", "base_model", "engine_version")
    query = (
        select(*(calibrations.c[name] for name in names), calibrations.c.valid_from)
        .where(calibrations.c.id.in_(used - {0}))
        .order_by(calibrations.c.id)
    )
    used_calibrations = [
        {**{name: row[name] for name in names}, "valid_from": iso(row["valid_from"])}
        for row in connection.execute(query).mappings()
    ]
    weights = "uncalibrated" if not used_calibrations else "partly calibrated" if 0 in used else "calibrated"
    return {"weights": weights, "calibrations": used_calibrations}


def _weights(connection: Connection, facts: Iterable[CostLine]) -> dict[int, Weights]:
    ids = {line.calibration for line in facts} - {0}
    table = calibrations.c
    terms = (table.id, table.prefill_ps, table.cached_ps, table.decode_ps, table.kv_ps, table.load_ps)
    return {row.id: Weights(*row) for row in connection.execute(select(*terms).where(table.id.in_(ids)))}
