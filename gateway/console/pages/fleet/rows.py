"""Engines and their slots as the pages show them, from what the API says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from gateway.console import formats

Json = dict[str, Any]

STATE_TONES: Final = {"active": "good", "cordoned": "warn", "draining": "warn", "stopping": "warn"}
HEALTH_TONES: Final = {"up": "good", "down": "bad", "hung": "bad", "ejected": "bad", "unknown": ""}
_TOLD: Final = {
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
_ENDS: Final = frozenset({"loaded", "not_loaded", "lost", "unloaded"})
_MINUTE: Final = 60_000_000


@dataclass(frozen=True, slots=True)
class Slot:
    version: str
    """`acme/support@v3`."""
    state: str
    """`resident`, `loading`, `leaving`, `lost` or `cached`; see the API's placement."""
    in_flight: int
    idle: str
    """How long ago it was used, in steps, so that a live view does not change each second."""
    pinned: bool

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
    def says(self) -> str:
        """`resident, 2 in flight, pinned`."""
        use = f"{self.in_flight} in flight" if self.busy else self.idle
        return ", ".join(filter(None, (self.state, use, "pinned" if self.pinned else "")))


@dataclass(frozen=True, slots=True)
class EngineRow:
    name: str
    gpus: str
    """`2 × H200`."""  # noqa: RUF001
    gpu_type: str
    base: str
    region: str
    url: str
    health: str
    health_tone: str
    reason: str
    """What is wrong with it, if anything."""
    state: str
    state_tone: str
    slots: int
    held: tuple[Slot, ...]
    """In its slots."""
    cached: tuple[Slot, ...]
    cpu_slots: int
    running: int
    waiting: int
    kv_usage: float | None
    lost: int

    @property
    def free(self) -> int:
        return max(0, self.slots - len(self.held))

    @property
    def in_flight(self) -> int:
        return sum(slot.in_flight for slot in (*self.held, *self.cached))

    @property
    def href(self) -> str:
        return f"/console/fleet/{self.name}"

    @property
    def serves(self) -> bool:
        return self.health == "up" and self.state in {"active", "cordoned"}


def engine_rows(engines: Iterable[Json], placement: Iterable[Json]) -> list[EngineRow]:
    placed = {entry["engine"]: entry["placements"] for entry in placement}
    return [_row(engine, placed.get(engine["name"], ())) for engine in engines]


def _row(engine: Json, placements: Iterable[Json]) -> EngineRow:
    slots = [_slot(entry) for entry in placements]
    state = state_of(engine)
    return EngineRow(
        name=engine["name"],
        gpus=f"{engine['gpu_count']} × {engine['gpu_type']}",  # noqa: RUF001
        gpu_type=engine["gpu_type"],
        base=engine["base"],
        region=engine["region"],
        url=engine["url"],
        health=engine["health"],
        health_tone=HEALTH_TONES.get(engine["health"], ""),
        reason=engine["reason"] or "",
        state=state,
        state_tone=STATE_TONES.get(state, "info"),
        slots=engine["slots"],
        held=tuple(slot for slot in slots if slot.state != "cached"),
        cached=tuple(slot for slot in slots if slot.state == "cached"),
        cpu_slots=max(0, engine["cpu_slots"] - engine["slots"]),
        running=engine["running"],
        waiting=engine["waiting"],
        kv_usage=engine["kv_usage"],
        lost=engine["lost"],
    )


def state_of(engine: Json) -> str:
    """Its host's doing goes before the operator's."""
    if engine["stopping"]:
        return "stopped" if engine["stopped"] else "stopping"
    return str(engine["state"])


def _slot(entry: Json) -> Slot:
    used = idle(entry["idle_seconds"])
    return Slot(entry["version"], entry["state"], entry["in_flight"], used, entry["pinned"])


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
        ("up", "not up", *sorted({row.state for row in rows})),
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
    return state in {"", row.health, row.state}


def _about(row: EngineRow, word: str) -> bool:
    held = (slot.version for slot in (*row.held, *row.cached))
    return any(word in text.lower() for text in (row.name, row.gpu_type, row.base, row.region, *held))


# -- totals, and what happens


@dataclass(frozen=True, slots=True)
class Tile:
    label: str
    value: str
    note: str = ""
    tone: str = ""


def tiles(rows: Sequence[EngineRow], changes: Iterable[Json], now: int) -> list[Tile]:
    """`now`: Unix microseconds."""
    up = sum(row.health == "up" for row in rows)
    slots, used = sum(row.slots for row in rows), sum(len(row.held) for row in rows)
    waiting = sum(row.waiting for row in rows)
    lately = [change for change in changes if change["at"] > now - _MINUTE]
    loads = sum(change["kind"] in {"loaded", "activated"} for change in lately)
    evictions = sum(change["kind"] in {"evicted", "unloaded"} for change in lately)
    cached = sum(len(row.cached) for row in rows)
    drains = sum(row.state in {"draining", "cordoned", "stopping"} for row in rows)
    return [
        Tile("Engines up", f"{up} of {len(rows)}", tone=_of(up, len(rows))),
        Tile("Slots in use", f"{used} of {slots}", f"{cached:,} more in CPU memory"),
        Tile(
            "Requests in flight",
            f"{sum(row.in_flight for row in rows):,}",
            f"{waiting:,} waiting on engines",
        ),
        Tile("Loads in the last minute", str(loads), f"{evictions} evicted or unloaded"),
        Tile("Out of rotation", str(drains), "cordoned, draining or stopping"),
    ]


def _of(up: int, all_: int) -> str:
    if up == all_:
        return "good" if all_ else ""
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


def feed(changes: Sequence[Json], *, most: int) -> list[FeedLine]:
    """Newest first. A load that has ended is told once, by its end."""
    lines: list[FeedLine] = []
    ended: set[tuple[str, str]] = set()
    for change in changes:
        of = change["engine"], change["version"]
        if change["kind"] == "loading" and of in ended:
            ended.discard(of)
            continue
        if change["kind"] in _ENDS and change["kind"] != "unloaded":
            ended.add(of)
        if len(lines) < most:
            lines.append(_line(change))
    return lines


def _line(change: Json) -> FeedLine:
    took = "" if change["seconds"] is None else formats.seconds(change["seconds"])
    adapter = change["version"].partition("@")[0]
    return FeedLine(
        change["at"],
        change["version"],
        f"/console/adapters/{quote(adapter)}" if "/" in adapter else "",
        str(_TOLD.get(change["kind"], change["kind"])),
        change["engine"],
        ", ".join(text for text in (took, change["why"] or "") if text),
        _CHANGE_TONES.get(change["kind"], ""),
    )
