"""Engines as a scheduler sees them, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.model import Placement, SlotState
from adapters.placement.residency import Held, Slot
from adapters.placement.scheduling.view import EngineView, Fleet

VERSION = "v"


def engine(
    name: str,
    *,
    in_flight: int = 0,
    held: Mapping[str, SlotState] | None = None,
    holds: bool = False,
    active: int = 0,
    slots: int = 2,
    **fields: Any,
) -> EngineView:
    """`in_flight` requests of the base model; `active` other adapters with a request each."""
    versions = dict(held or {}) | ({VERSION: SlotState.RESIDENT} if holds else {})
    placed = Held()
    for version, state in versions.items():
        placed.place(version, Slot(Placement(name, version, state), 0.0))
    view = EngineView(
        name,
        slots=slots,
        cpu_slots=fields.pop("cpu_slots", slots),
        max_rank=fields.pop("max_rank", 16),
        held=placed,
        **fields,
    )
    for _ in range(in_flight):
        view.sent("", 0)
    for number in range(active):
        view.sent(f"other-{number}", 0)
    view.refresh()
    return view


def fleet(*engines: EngineView) -> Fleet:
    return Fleet({e.name: e for e in engines}, lambda version: [e.name for e in engines if version in e.held])
