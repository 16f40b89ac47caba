"""Drains engines: loads what they hold elsewhere, moves the routing, and releases their slots.

The leader does this, from what the registry says of each engine (`Engine.drain`), so a drain outlives whoever
asked for it, and a leader that dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from adapters.errors import AdaptersError, ConflictError, EngineError, PlacementError, StoreUnavailableError
from adapters.model import Drain, Engine, dump
from adapters.placement.drain_plan import (
    DrainPlan,
    DrainSnapshot,
    EngineSnapshot,
    HeldVersion,
    Move,
    drain_plan,
)
from adapters.placement.engine_client import EngineClient
from adapters.placement.loader import Loader
from adapters.placement.residency import Residency
from adapters.registry.catalog import Catalog
from adapters.store.protocol import Store
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.registry import Change

log = logging.getLogger(__name__)

QUIET_SECONDS = 1.5
"""How long an engine must be without requests before it is released, because some workers learn of the drain
later than others."""

_AT_ONCE = 4
"""Engines that the store is asked about at a time: a large fleet would take all of its connections."""


async def survey(
    store: Store,
    catalog: Catalog,
    residency: Residency,
    loader: Loader,
    engine: Engine,
    failed: Mapping[tuple[str, str], str],
) -> DrainSnapshot:
    """What a drain of `engine` is planned from. Raises StoreUnavailableError."""
    fleet = catalog.fleet(engine.base_model)
    permits = asyncio.Semaphore(_AT_ONCE)

    async def seen_by_turns(peer: Engine) -> EngineSnapshot:
        async with permits:
            return await _seen(store, residency, loader, peer)

    seen = await asyncio.gather(*map(seen_by_turns, fleet))
    snapshots = {snapshot.engine.name: snapshot for snapshot in seen}
    held_names = set(residency.slots(engine.name))
    versions = {
        name: version
        for name in held_names
        if (version := catalog.by_engine_name.get(name)) is not None
        and version.retired is None
        and name not in catalog.serving_statuses
    }
    leaving = snapshots.pop(engine.name)
    return DrainSnapshot(
        leaving, list(snapshots.values()), versions, frozenset(catalog.pins), failed, loader.may_hold
    )


async def _seen(store: Store, residency: Residency, loader: Loader, engine: Engine) -> EngineSnapshot:
    ages, leases = await store.recency(engine.name), await store.leases(engine.name)
    held_versions = {
        name: HeldVersion(state, ages.get(name, 0) / 1000, leases.get(name, 0))
        for name, state in residency.slots(engine.name).items()
    }
    usable = loader.usable(engine.name)
    return EngineSnapshot(
        engine, held_versions, usable and engine.drain is None, _closed(engine, loader, usable=usable)
    )


def _closed(engine: Engine, loader: Loader, *, usable: bool) -> str:
    if not engine.takes_adapters:
        return "stopping" if engine.stopping else engine.state
    if engine.on_trial:
        return "on trial"
    if not usable:
        return "unhealthy"
    if loader.verifier is not None and loader.verifier.is_suspect(engine):
        return "suspect"
    return ""


@dataclass(slots=True)
class Evacuation:
    """Invariants: an engine that moves keeps serving until its versions are loaded elsewhere or its time is
    over; it is released only once it has had no requests for QUIET_SECONDS. `pause`: seconds between two
    loads on one engine, each of which stalls decoding there."""

    store: Store
    catalog: Catalog
    residency: Residency
    control: EngineClient
    loader: Loader
    pause: float
    now: Callable[[], int] = lambda: time.time_ns() // 1000
    """Unix microseconds, UTC."""
    # Mutable: engine → since when it has had no requests, on the loader's clock.
    _quiet: dict[str, float] = field(default_factory=dict)

    async def advance(self, name: str, fence: Fence) -> None:
        """Do what is to be done for one engine now. Raises FencedError, StoreUnavailableError."""
        engine = self.catalog.engines.get(name)
        if engine is None or engine.drain is None:
            self._quiet.pop(name, None)
        elif not engine.drain.moved:
            await self._move(name, fence)
        elif engine.drain.release and self.residency.slots(name):
            await self._release(engine, fence)

    async def _move(self, name: str, fence: Fence) -> None:
        """Load what is needed elsewhere, at most one version at a time on each target; then send the engine
        no new requests."""
        failed = dict[tuple[str, str], str]()
        loads = dict[asyncio.Task[None], Move]()
        try:
            while (engine := self.catalog.engines.get(name)) is not None and engine.moving:
                assert engine.drain
                left = (engine.drain.until - self.now()) / 1e6
                plan = await self._plan(engine, failed)
                if left <= 0 or not (plan.moves or loads):
                    await self._moved(engine, engine.drain, plan, fence)
                    return
                await self.store.commit((), fence=fence)  # loads are not fenced, so check before each
                for move in _startable(plan, loads.values()):
                    loads[asyncio.create_task(self._load(move, left), name=f"drain {name}")] = move
                done, _ = await asyncio.wait(loads, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    move = loads.pop(task)
                    if (error := task.exception()) is not None:
                        _note(failed, move, name, error)
        finally:
            for task in loads:
                task.cancel()
            await asyncio.gather(*loads, return_exceptions=True)

    async def _plan(self, engine: Engine, failed: Mapping[tuple[str, str], str]) -> DrainPlan:
        return drain_plan(await survey(self.store, self.catalog, self.residency, self.loader, engine, failed))

    async def _load(self, move: Move, seconds: float) -> None:
        """Raises PlacementError, StoreUnavailableError."""
        target, deadline = self.catalog.engines[move.to], self.loader.clock() + seconds
        if not await self.loader.open_replica(move.version, target, deadline=deadline):
            raise PlacementError("no slot became free there, or the load failed")
        self.loader.loads_since(move.version, move.to)  # no request is charged for it
        await asyncio.sleep(self.pause)

    async def _moved(self, engine: Engine, drain: Drain, plan: DrainPlan, fence: Fence) -> None:
        waits = [f"{move.version.id} (no time left)" for move in plan.moves]
        waits += [f"{version.id} ({reason})" for version, reason in plan.stays]
        stays = f"; not loaded elsewhere: {', '.join(waits)}" if waits else ""
        moved = replace(engine, drain=replace(drain, moved=True))
        change = Change("engine", engine.name, dump(moved), expect=dump(engine))
        with contextlib.suppress(ConflictError):  # changed concurrently: look again
            await self.store.commit([change], fence=fence)
            log.info("Engine %s: drained of new requests%s", engine.name, stays)

    # -- once its versions are elsewhere

    async def _release(self, engine: Engine, fence: Fence) -> None:
        """Unload everything, once no request has run for a while."""
        now = self.loader.clock()
        if await self.store.leases(engine.name):
            self._quiet.pop(engine.name, None)
            return
        if now - self._quiet.setdefault(engine.name, now) < QUIET_SECONDS:
            return
        for name in self.residency.slots(engine.name):
            await self.store.unplace(engine.name, name, fence=fence)
            with contextlib.suppress(EngineError):  # it may be gone already
                await self.control.unload(engine, name)
        log.info("Engine %s: released", engine.name)


def _startable(plan: DrainPlan, running: Collection[Move]) -> list[Move]:
    """The next move of each target that is not busy."""
    busy = {move.to for move in running}
    started = {move.version.engine_name for move in running}
    next_moves = dict[str, Move]()
    for move in plan.moves:
        if move.to not in busy and move.version.engine_name not in started:
            next_moves.setdefault(move.to, move)
    return list(next_moves.values())


def _note(failed: dict[tuple[str, str], str], move: Move, leaving: str, error: BaseException) -> None:
    """Raises `error` unless another target may still do."""
    if isinstance(error, StoreUnavailableError) or not isinstance(error, AdaptersError):
        raise error
    log.warning("Drain of %s: load of %s on %s failed: %s", leaving, move.version.id, move.to, error)
    failed[move.version.engine_name, move.to] = str(error)
