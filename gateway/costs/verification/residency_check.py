"""Checks the resident adapters of a closed month: their hours are as sealed, and as the samples give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from gateway.costs.periods import HOUR, month
from gateway.costs.selling.residency import (
    BRIDGE,
    PLACES,
    hours_text,
    sampled_residency,
    stored_residency,
    summary,
)


def residency_check(
    connection: Connection, of: str, terms: Mapping[str, Any], closing_at: int
) -> tuple[list[str], str]:
    """Problems, and the hours of all adapters. `terms`: what the month's terms say of them. A month that was
    closed at once, by force, may lack the end of the last stay: it was seen to go on only afterwards."""
    stored, sampled = stored_residency(connection, of), sampled_residency(connection, of)
    made = summary(stored)
    wrong = [
        f"the stored hours have {name} {made[name]}, sealed as {terms[name]}"
        for name in made
        if made[name] != terms[name]
    ]
    late = closing_at < month(of).end + BRIDGE
    most = BRIDGE * 10**PLACES // HOUR + 1 if late else 0
    for adapter in sorted(stored.keys() | sampled.keys()):
        held, now = stored.get(adapter, 0), sampled.get(adapter, 0)
        if not 0 <= now - held <= most:
            wrong.append(
                f"{adapter} was resident for {hours_text(held)} hours, the samples give {hours_text(now)}"
            )
    return wrong, made["hours"]
