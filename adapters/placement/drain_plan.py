"""Plans a drain: which of an engine's versions to load on which other engines, and which stay. Pure.

What requests have used recently is moved, most recently used first: into free slots, then in place of
versions that have been idle for longer. A version that has no place elsewhere, or has not been called for
long, is loaded when it is next called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from adapters.model import Engine, SlotState, Version, release_of
from adapters.placement.scheduling.filters import NOT_STARTED_WITH

RECENT_SECONDS = 3600.0
"""A version that has been idle for longer is not moved."""


@dataclass(frozen=True, slots=True)
class HeldVersion:
    """One version on one engine."""

    state: SlotState
    idle: float
    """Seconds since its last use."""
    in_flight: int = 0
    """Requests running there."""


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One engine of the fleet. `held` is keyed by engine-side names."""

    engine: Engine
    held: Mapping[str, HeldVersion]
    serves: bool = True
    """It is up, takes requests, and is not being drained."""
    closed: str = ""
    """Why nothing can be loaded there; empty: something can."""


def _anywhere(_engine: Engine, _version: Version) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class DrainSnapshot:
    leaving: EngineSnapshot
    others: Sequence[EngineSnapshot]
    """The other engines of its fleet."""
    versions: Mapping[str, Version]
    """The callable ones, by engine-side name."""
    pinned: frozenset[str] = frozenset()
    failed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(version, engine) → why a load of this drain failed there."""
    may_hold: Callable[[Engine, Version], bool] = _anywhere


@dataclass(frozen=True, slots=True)
class Move:
    version: Version
    to: str
    replaces: str | None = None
    """Engine-side name of the version that loses its slot there."""
    idle: float = 0.0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class DrainPlan:
    moves: tuple[Move, ...]
    """Most recently used first."""
    elsewhere: tuple[tuple[Version, tuple[str, ...]], ...]
    """Versions that other engines hold already, with these engines."""
    stays: tuple[tuple[Version, str], ...]
    """Versions that are not moved, with the reason."""


def drain_plan(snapshot: DrainSnapshot) -> DrainPlan:
    """Every callable version on the leaving engine is in exactly one part of the plan. The moves never exceed
    a target's slots, and never replace what is pinned, in flight or used more recently."""
    moves: list[Move] = []
    elsewhere: list[tuple[Version, tuple[str, ...]]] = []
    stays: list[tuple[Version, str]] = []
    rooms = [_Room.of(other, snapshot.pinned) for other in snapshot.others]
    hottest = sorted(
        snapshot.leaving.held.items(), key=lambda item: (-item[1].in_flight, item[1].idle, item[0])
    )
    for name, held_version in hottest:
        version = snapshot.versions.get(name)
        if version is None:
            continue  # not callable any more: nothing to move
        holders = _on(snapshot, version, SlotState.RESIDENT)
        if holders:
            elsewhere.append((version, holders))
            continue
        loading = _on(snapshot, version, SlotState.LOADING)
        if loading:
            moves.append(Move(version, loading[0], None, held_version.idle, held_version.in_flight))
        elif held_version.state is SlotState.LOST:
            stays.append((version, "lost in a restart; loads elsewhere when called"))
        elif (
            held_version.idle > RECENT_SECONDS and not held_version.in_flight and name not in snapshot.pinned
        ):
            stays.append((version, f"idle for {_lasting(held_version.idle)}; loads elsewhere when called"))
        elif (room := _best(rooms, version, held_version, snapshot)) is not None:
            moves.append(
                Move(
                    version,
                    room.engine.name,
                    room.take(version, held_version.idle),
                    held_version.idle,
                    held_version.in_flight,
                )
            )
        else:
            stays.append((version, _why_not(rooms, version, held_version, snapshot)))
    return DrainPlan(tuple(moves), tuple(elsewhere), tuple(stays))


def _on(snapshot: DrainSnapshot, version: Version, state: SlotState) -> tuple[str, ...]:
    """The other engines on which the version is in this state and may be served."""
    return tuple(
        other.engine.name
        for other in snapshot.others
        if other.serves
        and (held_version := other.held.get(version.engine_name)) is not None
        and held_version.state is state
        and snapshot.may_hold(other.engine, version)
    )


@dataclass(slots=True)
class _Room:
    """The slots of one other engine, as the plan fills them."""

    snapshot: EngineSnapshot
    free: int
    idle: list[tuple[float, str]]
    """Versions that may lose their slot, the longest idle last."""
    arrivals: int = 0

    @classmethod
    def of(cls, snapshot: EngineSnapshot, pinned: frozenset[str]) -> _Room:
        in_slots = {n: h for n, h in snapshot.held.items() if h.state is not SlotState.CACHED}
        idle = sorted(
            (held_version.idle, name)
            for name, held_version in in_slots.items()
            if not held_version.in_flight
            and held_version.state is not SlotState.LOADING
            and name not in pinned
        )
        return cls(snapshot, snapshot.engine.slots - len(in_slots), idle)

    @property
    def engine(self) -> Engine:
        return self.snapshot.engine

    def reserved(self, version: Version) -> bool:
        """Whether it held the version before it restarted: the slot is still there."""
        held_version = self.snapshot.held.get(version.engine_name)
        return held_version is not None and held_version.state is SlotState.LOST

    def fits(self, version: Version, idle: float) -> bool:
        """Whether there is a slot for the version, which has been idle for so long."""
        if self.free > 0 or self.reserved(version):
            return True
        return self.free == 0 and bool(self.idle) and self.idle[-1][0] > idle

    def take(self, version: Version, idle: float) -> str | None:
        """Take a slot; returns the version that loses it."""
        assert self.fits(version, idle)
        self.arrivals += 1
        self.idle = [entry for entry in self.idle if entry[1] != version.engine_name]
        if self.reserved(version):
            return None
        if self.free > 0:
            self.free -= 1
            return None
        return self.idle.pop()[1]


def _best(
    rooms: Sequence[_Room], version: Version, held_version: HeldVersion, snapshot: DrainSnapshot
) -> _Room | None:
    """Where the version goes: into a free slot before another version's, and spread evenly."""
    open_ = [room for room in rooms if not _refusal(room, version, held_version, snapshot)]
    return min(
        open_,
        key=lambda room: (
            not room.reserved(version),
            room.free <= 0,
            room.arrivals,
            -room.free,
            room.engine.name,
        ),
        default=None,
    )


def _refusal(room: _Room, version: Version, held_version: HeldVersion, snapshot: DrainSnapshot) -> str:
    """Why the version cannot be loaded there; empty: it can."""
    if room.snapshot.closed:
        return room.snapshot.closed
    if not room.engine.fits(version):
        return _unfit(room.engine, version)
    if not snapshot.may_hold(room.engine, version):
        foreign = room.engine.tenant not in ("", version.tenant)
        return "is dedicated to another tenant" if foreign else "lacks a label that the tenant requires"
    if failed := snapshot.failed.get((version.engine_name, room.engine.name)):
        return failed
    there = room.snapshot.held.get(version.engine_name)
    if there is not None and there.state is SlotState.LEAVING:
        return "it is giving way to another version there"
    return (
        "" if room.fits(version, held_version.idle) else "its slots are pinned, in use, or used more recently"
    )


def _unfit(engine: Engine, version: Version) -> str:
    if engine.serves:
        return f"serves only {engine.serves}"
    if version.rank > engine.max_rank:
        return f"rank {version.rank} exceeds its maximum of {engine.max_rank}"
    if release_of(version.min_vllm) > engine.release:
        return f"needs vLLM {version.min_vllm} or later"
    return NOT_STARTED_WITH


def _why_not(
    rooms: Sequence[_Room], version: Version, held_version: HeldVersion, snapshot: DrainSnapshot
) -> str:
    reasons = [f"{room.engine.name}: {_refusal(room, version, held_version, snapshot)}" for room in rooms]
    return "; ".join(sorted(reasons)) or f"no other engine serves {version.base_model}"


def _lasting(seconds: float) -> str:
    return f"{seconds / 86_400:.0f} d" if seconds >= 86_400 else f"{seconds / 3600:.0f} h"
