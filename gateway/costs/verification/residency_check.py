"""Checks the resident adapters of a closed month: their hours are as sealed, and as the samples give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from gateway.costs.periods import month_of
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
