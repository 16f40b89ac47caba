"""Checks the resident adapters and the dedicated engines of a closed month: their hours are as sealed, and as
the samples and sightings give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from gateway.costs.periods import month_of
from gateway.costs.selling import dedicated
from gateway.costs.selling.residency import BRIDGE, sampled_residency, stored_residency, summary
from gateway.units import HOUR, MilliHours, hours_text


def residency_check(
    connection: Connection, month: str, terms: Mapping[str, Any], closing_at: int
) -> tuple[list[str], str]:
    """Problems, and the hours of all adapters. `terms`: what the month's terms say of them. A month that was
    closed at once, by force, may lack the end of the last stay: it was seen to go on only afterwards."""
    stored, sampled = stored_residency(connection, month), sampled_residency(connection, month)
    sealed = summary(stored)
    wrong = [
        f"the stored hours have {name} {sealed[name]}, sealed as {terms[name]}"
        for name in sealed
        if sealed[name] != terms[name]
    ]
    late = closing_at < month_of(month).end + BRIDGE
    most = BRIDGE * 1000 // HOUR + 1 if late else 0
    for adapter in sorted(stored.keys() | sampled.keys()):
        kept, now = stored.get(adapter, MilliHours(0)), sampled.get(adapter, MilliHours(0))
        if not 0 <= now - kept <= most:
            wrong.append(
                f"{adapter} was resident for {hours_text(kept)} hours, the samples give {hours_text(now)}"
            )
    return wrong, sealed["hours"]


def dedicated_check(
    connection: Connection, month: str, terms: Mapping[str, Any] | None, closing_at: int
) -> tuple[list[str], str] | None:
    """The same for dedicated engines. `terms`: None if the month had none; the answer is None if it
    has none now either."""
    stored = dedicated.stored_dedicated(connection, month)
    sighted = dedicated.sighted_dedicated(connection, month)
    if terms is None and not stored and not sighted:
        return None
    sealed, known = dedicated.summary(stored), terms or dedicated.summary({})
    wrong = [
        f"the stored hours have {name} {sealed[name]}, sealed as {known[name]}"
        for name in sealed
        if sealed[name] != known[name]
    ]
    late = closing_at < month_of(month).end + BRIDGE
    gpus = dedicated.dedicated_gpus(connection, month) if late else {}
    keys = {
        (tenant, gpu_type) for hours in (stored, sighted) for tenant in hours for gpu_type in hours[tenant]
    }
    for tenant, gpu_type in sorted(keys):
        kept, now = (hours.get(tenant, {}).get(gpu_type, MilliHours(0)) for hours in (stored, sighted))
        if not 0 <= now - kept <= (BRIDGE * 1000 * gpus.get((tenant, gpu_type), 0)) // HOUR + late:
            wrong.append(
                f"{tenant} had {hours_text(kept)} dedicated {gpu_type} GPU-hours, "
                f"the sightings give {hours_text(now)}"
            )
    return wrong, sealed["gpu_hours"]
