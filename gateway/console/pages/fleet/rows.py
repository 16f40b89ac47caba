"""Engines and their slots as the pages show them, from what the API says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from gateway.console import formats
from gateway.fleet.engines.schemas.engines import Engine
from gateway.fleet.placement.schemas import EnginePlacement, PlacedVersion, PlacementChange

STATE_TONES: Final = {
    "active": "good",
    "cordoned": "warn",
    "draining": "warn",
    "stopping": "warn",
    "on trial": "info",
}
HEALTH_TONES: Final = {"up": "good", "down": "bad", "hung": "bad", "ejected": "bad", "unknown": ""}
_CHANGES: Final = {
    "loading": "is being loaded on",
    "loaded": "was loaded on",
    "not_loaded": "could not be loaded on",
    "activated": "came from CPU memory into a slot of",
    "evicted": "left its slot for CPU memory on",
    "unloaded": "was unloaded from",
    "leaving": "takes no new requests on",
    "kept": "takes requests again on",
    "lost": "was lost with the process of",
}
_CHANGE_TONES: Final = {"loaded": "good", "activated": "good", "not_loaded": "bad", "lost": "bad"}
_ENDS: Final = frozenset({"loaded", "not_loaded", "lost"})
_MINUTE: Final = 60_000_000


class Slot(PlacedVersion):
    @property
    def adapter(self) -> str:
        return self.version.partition("@")[0]

    @property
    def number(self) -> str:
        return self.version.partition("@")[2].partition(" ")[0]

    @property
    def href(self) -> str:
        """Empty if the registry no longer has it."""
        return f"/console/adapters/{quote(self.adapter)}" if self.number else ""

    @property
    def busy(self) -> bool:
        return self.in_flight > 0

    @property
    def idle(self) -> str:
        return idle(self.idle_seconds)

    @property
    def says(self) -> str:
        """`resident, 2 in flight, pinned`."""
        use = f"{self.in_flight} in flight" if self.busy else self.idle
        return ", ".join(filter(None, (self.state, use, "pinned" if self.pinned else "")))


class Slots(EnginePlacement):
    placements: tuple[Slot, ...]


class EngineRow(Engine):
    """An engine with what is placed on it."""

    placed: tuple[Slot, ...] = ()

    @property
    def gpus(self) -> str:
        """`2 × H200`."""  # noqa: RUF002
        return f"{self.gpu_count} × {self.gpu_type}"  # noqa: RUF001

    @property
    def health_tone(self) -> str:
        return HEALTH_TONES.get(self.health, "")

    @property
    def status(self) -> str:
        """Its state; what its host does goes before what the operator does."""
        if self.stopping:
            return "stopped" if self.stopped else "stopping"
        return "on trial" if self.trial and self.state == "active" else self.state

    @property
    def status_tone(self) -> str:
        return STATE_TONES.get(self.status, "info")

    @property
    def held(self) -> list[Slot]:
        """In its slots."""
        return [slot for slot in self.placed if slot.state != "cached"]

    @property
    def cached(self) -> list[Slot]:
        return [slot for slot in self.placed if slot.state == "cached"]

    @property
    def cpu_room(self) -> int:
        """Versions in CPU memory besides those in slots, at most."""
        return max(0, self.cpu_slots - self.slots)

    @property
    def free(self) -> int:
        return max(0, self.slots - len(self.held))

    @property
    def in_flight(self) -> int:
        return sum(slot.in_flight for slot in self.placed)

    @property
    def href(self) -> str:
        return f"/console/fleet/{self.name}"


def engine_rows(engines: Iterable[EngineRow], placements: Iterable[Slots]) -> list[EngineRow]:
    placed = {placement.engine: placement.placements for placement in placements}
    return [row.model_copy(update={"placed": placed.get(row.name, ())}) for row in engines]


def idle(seconds: float | None) -> str:
    """`idle 20 s`, `idle 4 min`: in steps."""
    if seconds is None:
        return ""
    if seconds < 10:
        return "used just now"
    for below, unit, name in ((60, 1, "s"), (3_600, 60, "min"), (86_400, 3_600, "h")):
        if seconds < below:
            amount = int(seconds // unit)
            return f"idle {amount // 10 * 10 if unit == 1 else amount} {name}"
    return f"idle {int(seconds // 86_400)} d"


# -- filters


@dataclass(frozen=True, slots=True)
class Choices:
    """What the filters of a page offer."""

    bases: tuple[str, ...]
    gpus: tuple[str, ...]
    states: tuple[str, ...]


def choices(rows: Sequence[EngineRow]) -> Choices:
    return Choices(
        tuple(sorted({row.base for row in rows})),
        tuple(sorted({row.gpu_type for row in rows})),
        ("up", "not up", *sorted({row.status for row in rows})),
    )


def filtered(rows: Iterable[EngineRow], query: Mapping[str, str]) -> list[EngineRow]:
    """By `base`, `gpu`, `state` (or health), and by `q` in the names of engines and of what they hold."""
    words = query.get("q", "").lower().split()
    return [
        row
        for row in rows
        if query.get("base", "") in {"", row.base}
        and query.get("gpu", "") in {"", row.gpu_type}
        and _in_state(row, query.get("state", ""))
        and all(_about(row, word) for word in words)
    ]


def _in_state(row: EngineRow, state: str) -> bool:
    if state == "not up":
        return row.health != "up"
    return state in {"", row.health, row.status}


def _about(row: EngineRow, word: str) -> bool:
    versions = (slot.version for slot in row.placed)
    return any(word in text.lower() for text in (row.name, row.gpu_type, row.base, row.region, *versions))


# -- totals, and what happens


@dataclass(frozen=True, slots=True)
class Tile:
    label: str
    value: str
    note: str = ""
    tone: str = ""


def tiles(rows: Sequence[EngineRow], changes: Iterable[PlacementChange], now: int) -> list[Tile]:
    """`now`: Unix microseconds."""
    up = sum(row.health == "up" for row in rows)
    slots, used = sum(row.slots for row in rows), sum(len(row.held) for row in rows)
    waiting = sum(row.waiting for row in rows)
    lately = [change.kind for change in changes if change.changed_at > now - _MINUTE]
    loads = sum(kind in {"loaded", "activated"} for kind in lately)
    evictions = sum(kind in {"evicted", "unloaded"} for kind in lately)
    cached = sum(len(row.cached) for row in rows)
    drains = sum(row.status in {"draining", "cordoned", "stopping"} for row in rows)
    return [
        Tile("Engines up", f"{up} of {len(rows)}", tone=_up_tone(up, len(rows))),
        Tile("Slots in use", f"{used} of {slots}", f"{cached:,} more in CPU memory"),
        Tile(
            "Requests in flight",
            f"{sum(row.in_flight for row in rows):,}",
            f"{waiting:,} waiting on engines",
        ),
        Tile("Loads in the last minute", str(loads), f"{evictions} evicted or unloaded"),
        Tile("Out of rotation", str(drains), "cordoned, draining or stopping"),
    ]


def _up_tone(up: int, engines: int) -> str:
    if up == engines:
        return "good" if engines else ""
    return "warn" if up else "bad"


@dataclass(frozen=True, slots=True)
class FeedLine:
    at: int
    version: str
    href: str
    what: str
    """Between the version and the engine: `was loaded on`."""
    engine: str
    note: str
    """`in 1.2 s, to make room for acme/sales@v1`."""
    tone: str


def feed(changes: Sequence[PlacementChange], *, most: int) -> list[FeedLine]:
    """Newest first. A load that has ended is told once, by its end."""
    lines: list[FeedLine] = []
    ended: set[tuple[str, str]] = set()
    for change in changes:
        place = change.engine, change.version
        if change.kind == "loading" and place in ended:
            ended.discard(place)
            continue
        if change.kind in _ENDS:
            ended.add(place)
        if len(lines) < most:
            lines.append(_line(change))
    return lines


def _line(change: PlacementChange) -> FeedLine:
    took = "" if change.seconds is None else formats.seconds(change.seconds)
    adapter = change.version.partition("@")[0]
    return FeedLine(
        change.changed_at,
        change.version,
        f"/console/adapters/{quote(adapter)}" if "/" in adapter else "",
        _CHANGES[change.kind],
        change.engine,
        ", ".join(filter(None, (took, change.why))),
        _CHANGE_TONES.get(change.kind, ""),
    )
