"""Keeps engines in line with the registry: one leading worker compares and repairs.

The leader asks every engine what it has loaded: at once if its placement or its process may have changed, and
now and then. A restarted engine is empty: its versions are marked lost, so
that no requests for them are routed there, and reloaded one at a time, most recently used first. Adapters
under Florin's names that are not assigned to the engine are unloaded. Adapters under other names belong to
other clients; `florin doctor` reports them. Every change carries the leader's fence, so a worker that lost
the role without noticing changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from adapters.drivers import driver_of
from adapters.errors import (
    AdaptersError,
    EngineError,
    FencedError,
    LoadFailedError,
    QuarantinedError,
    StoreUnavailableError,
)
from adapters.model import Engine, SlotState, Version, fingerprint_ids
from adapters.placement.engine_client import EngineClient
from adapters.placement.loader import Loader
from adapters.placement.residency import Residency
from adapters.reconcile.artifact_gc import ArtifactCollector
from adapters.reconcile.drift import own_strays
from adapters.reconcile.evacuation import Evacuation
from adapters.reconcile.load_retries import LoadRetries
from adapters.reconcile.merged_engines import MergedEngines
from adapters.reconcile.rebalancer import Rebalancer
from adapters.reconcile.stopped_engines import StoppedEngines
from adapters.registry.catalog import Catalog
from adapters.store.leader_job import LeaderJob
from adapters.store.protocol import Store
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.registry import Change

log = logging.getLogger(__name__)

ROLE = "reconciler"
LEASE_MS = 5_000
LOOK_SECONDS = 1.0
"""Longest time between looks at which engines there are."""
RELOAD_SECONDS = 30.0
FEED_WAIT_SECONDS = 1.0
"""How long to wait until this worker sees its own write in the feed."""
COLLECT_SECONDS = 60.0

QUIET_SECONDS = 30.0
"""Time after which an engine is asked what it has loaded although nothing seems to have changed there."""
PORTION = 100
"""Engines that are looked at at once: more would stall the event loop."""

LISTED = (SlotState.RESIDENT, SlotState.LEAVING, SlotState.CACHED)
"""What the engine lists unless it has restarted."""


@dataclass(slots=True)
class Reconciler:
    """Repairs drift between the registry and the engines, in the one worker that holds the role.

    Invariants: every write to the store carries the fence of the role; nothing is repaired while the views
    are stale (`current`); a stray adapter is unloaded only after two consecutive observations, because the
    first may fall between a load and its confirmation; one engine that hangs delays no other.

    `interval`: seconds between looks at an engine; `reload_interval`: seconds between reloads on one.
    """

    store: Store
    catalog: Catalog
    residency: Residency
    control: EngineClient
    loader: Loader
    owner: str
    interval: float
    probe_timeout: float
    reload_interval: float
    collector: ArtifactCollector
    load_retries: LoadRetries
    stopped: StoppedEngines
    evacuation: Evacuation
    rebalancer: Rebalancer
    current: Callable[[], bool] = lambda: True
    """Whether the views are current; nothing is repaired from stale views."""
    process: Callable[[str], Hashable] = lambda _name: None
    """Changes whenever the engine may have restarted, or was away."""
    collect_interval: float = COLLECT_SECONDS
    # Mutable: the leader's tasks, by engine or chore.
    _work: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    # Mutable: engine → its process, and the names that it keeps there though it no longer holds the adapters.
    _kept: dict[str, tuple[Hashable, set[str]]] = field(default_factory=dict)
    # Mutable: engines that need nothing: what they looked like then, and when, on the loader's clock.
    _settled: dict[str, tuple[object, float]] = field(default_factory=dict)
    merged: MergedEngines = field(init=False)
    job: LeaderJob = field(init=False)

    def __post_init__(self) -> None:
        self.merged = MergedEngines(self.store, self.catalog)
        self.job = LeaderJob(
            *(self.store, self.owner, ROLE, "Reconciling engines", self._run_tasks, LOOK_SECONDS),
            lease_ms=LEASE_MS,
            lost=self._stop_all,
        )

    async def _stop_all(self) -> None:
        self._settled.clear()
        await self._stop(list(self._work))

    async def _run_tasks(self) -> float:
        """Keep one task running per engine where there may be something to do, so that one that hangs delays
        no other, and one per chore. Returns the seconds until the next look."""
        for name, ended in list(self._work.items()):
            if ended.done() and not ended.cancelled() and not ended.exception():
                del self._work[name]
        fence = self.job.fence
        assert fence is not None  # it leads
        chores: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "sweep": partial(self._every, self.interval, self.sweep, fence),
            "retry": partial(self._every, self.interval, self.load_retries.retry_due, fence),
            "stopped": partial(self._every, self.interval, self.stopped.update, fence),
            "merged": partial(self._every, self.interval, self.merged.update, fence),
            "artifact-gc": partial(self._every, self.collect_interval, self.collector.collect, fence),
        }
        if self.rebalancer.interval:
            chores["placement"] = partial(self.rebalancer.run, fence)
        for count, (name, engine) in enumerate(list(self.catalog.engines.items()), 1):
            if count % PORTION == 0:
                await asyncio.sleep(0)
            if f"engine {name}" in self._work or self._is_due(engine):
                chores[f"engine {name}"] = partial(self._watch_engine, name, fence)
            if engine.drain is not None:
                drain = partial(self.evacuation.advance, name)
                chores[f"drain {name}"] = partial(self._every, self.interval, drain, fence)
        await self._stop([name for name in self._work if name not in chores])
        for name, work in chores.items():
            before = self._work.get(name)
            if before is None or before.done():
                if before is not None and not before.cancelled() and before.exception():
                    log.error("Reconciler task %s failed; restarting", name, exc_info=before.exception())
                self._work[name] = asyncio.create_task(work(), name=f"reconcile {name}")
        return min(self.interval, LOOK_SECONDS)

    async def _stop(self, names: list[str]) -> None:
        tasks = {self._work.pop(name) for name in names}
        while tasks:  # libraries sometimes swallow a cancellation
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=1)

    async def _every(self, seconds: float, work: Callable[[Fence], Awaitable[None]], fence: Fence) -> None:
        while True:
            with contextlib.suppress(StoreUnavailableError):
                try:
                    if self.current():
                        await work(fence)
                except FencedError:
                    return
            await asyncio.sleep(seconds)

    async def _watch_engine(self, name: str, fence: Fence) -> None:
        """Repair an engine until it needs nothing."""
        strays: frozenset[str] = frozenset()
        while engine := self.catalog.engines.get(name):
            with contextlib.suppress(StoreUnavailableError):
                try:
                    if self.current():
                        before = self._looks(engine, self.residency.placed(name))
                        strays = await self.repair(engine, strays, fence)
                        if not strays and not self._is_unsettled(self.residency.placed(name)):
                            # Not all engines are to be asked again at once because all were asked at once.
                            early = 0.0 if name in self._settled else QUIET_SECONDS * random.random()  # noqa: S311
                            self._settled[name] = before, self.loader.clock() - early
                            return
                except FencedError:
                    return
            await asyncio.sleep(self.interval)

    def _is_due(self, engine: Engine) -> bool:
        """Whether there may be something to repair."""
        looks, seen = self._settled.get(engine.name, (None, 0.0))
        placed = self.residency.placed(engine.name)
        changed = looks != self._looks(engine, placed) or self._is_unsettled(placed)
        return changed or self.loader.clock() - seen >= QUIET_SECONDS

    def _looks(self, engine: Engine, placed: dict[str, SlotState]) -> object:
        """Whatever changes there without the engine being asked."""
        return engine, self.process(engine.name), placed

    def _is_unsettled(self, placed: dict[str, SlotState]) -> bool:
        """Whether something on the engine is to be reloaded or removed."""
        return any(state is SlotState.LOST or self._is_gone(version) for version, state in placed.items())

    async def sweep(self, fence: Fence) -> None:
        """Remove leftovers: placements of removed engines (the worker that removed one may have died
        halfway), and serving statuses and fingerprints of removed versions."""
        for name in self.residency.engines() - self.catalog.engines.keys():
            await self.store.unplace(name, fence=fence)
        catalog = self.catalog
        judged = catalog.serving_statuses.keys() - catalog.by_engine_name.keys() - catalog.engines.keys()
        models = (*catalog.by_engine_name, *catalog.bases)
        taken = catalog.fingerprints.keys() - {id_ for model in models for id_ in fingerprint_ids(model)}
        orphans = [Change("serving_status", name, None) for name in sorted(judged)]
        orphans += [Change("fingerprint", name, None) for name in sorted(taken)]
        if orphans:
            await self.store.commit(orphans, fence=fence)

    async def repair(self, engine: Engine, strays: frozenset[str], fence: Fence) -> frozenset[str]:
        """Repair one engine. `strays`: adapters under Florin's names that were not assigned here at the last
        observation. Returns the strays of this observation."""
        placed = self.residency.placed(
            engine.name
        )  # read before asking: a version added in between is not missing
        try:
            listed = (await self.control.serving(engine, timeout=self.probe_timeout)).loras
        except EngineError:
            await self._doubt(engine, placed, fence)
            return frozenset()  # down: nothing to repair until it is back
        loaded = placed.keys() if listed is None else listed
        gone = {v for v, state in placed.items() if state is not SlotState.LOADING and self._is_gone(v)}
        for name in gone:
            await self.store.unplace(engine.name, name, fence=fence)  # if still loaded, it is now a stray
        missing = {v for v, state in placed.items() if state in LISTED}.difference(loaded) - gone
        if missing:
            await self._mark_lost(engine, missing, fence)
        lost = {v for v, state in self.residency.slots(engine.name).items() if state is SlotState.LOST}
        if lost and engine.takes_requests and not engine.moving and not self._is_suspect(engine):
            await self._restore(engine, lost, fence)
        now = own_strays(loaded, placed) - self._names_kept(engine.name, placed)
        seen_twice = now & strays
        if seen_twice:
            await self._unload_strays(engine, seen_twice, fence)
        return frozenset(now - seen_twice)

    async def _doubt(self, engine: Engine, placed: Mapping[str, SlotState], fence: Fence) -> None:
        """An engine that is away may come back as another process. If that could have other weights under the
        same names, because it does not tell what it holds and its base model answers for an adapter that it
        does not hold, or because a version is merged into them, then everything there is verified anew before
        it is served."""
        doubtful = {v for v, state in placed.items() if state in LISTED}
        if doubtful and (engine.serves or driver_of(engine).capabilities.base_for_unknown):
            await self._mark_lost(engine, doubtful, fence)

    def _is_gone(self, name: str) -> bool:
        """Whether the version was removed or retired, while the engine was unreachable or just before an
        earlier request loaded it."""
        version = self.catalog.by_engine_name.get(name)
        return version is None or version.retired is not None

    async def _mark_lost(self, engine: Engine, missing: set[str], fence: Fence) -> None:
        """Mark versions lost after an unannounced restart; cached ones are forgotten. Returns when this
        worker's view shows it."""
        log.warning("Engine %s: %d adapters are no longer loaded", engine.name, len(missing))
        await self.store.mark_lost(engine.name, sorted(missing), fence=fence)
        deadline = time.monotonic() + FEED_WAIT_SECONDS
        while time.monotonic() < deadline:
            placed = self.residency.placed(engine.name)
            if not any(placed.get(v) in LISTED for v in missing):
                return
            await self.loader.changed(FEED_WAIT_SECONDS)

    # -- engines that have restarted

    async def _restore(self, engine: Engine, lost: set[str], fence: Fence) -> None:
        age = await self.store.recency(engine.name)
        hottest = sorted(lost & age.keys(), key=age.__getitem__)
        taken = self.residency.slots(engine.name).keys() - lost
        room = max(0, engine.slots - len(taken))  # it may have restarted with fewer slots
        keep = set(sorted(hottest, key=lambda v: v not in self.catalog.pins)[:room])
        for name in hottest:
            version = self.catalog.by_engine_name.get(name)
            merged = bool(engine.serves)  # the planner has it compared anew
            if merged or name not in keep or version is None or not self._fits(engine, version):
                await self.store.unplace(engine.name, name, fence=fence)
            elif (
                self.residency.slots(engine.name).get(name) is SlotState.LOST
            ):  # not yet reloaded by a request
                if not await self._reload(engine, version, fence):
                    return
                await asyncio.sleep(self.reload_interval)  # a load stalls every request on the engine

    def _is_suspect(self, engine: Engine) -> bool:
        verifier = self.loader.verifier
        return verifier is not None and verifier.is_suspect(engine)

    def _fits(self, engine: Engine, version: Version) -> bool:
        """Whether the version may still be on the engine; the registry or the engine may have changed."""
        return (
            version.retired is None
            and version.base_model == engine.base_model
            and version.engine_name not in self.catalog.serving_statuses
            and self.loader.may_hold(engine, version)
        )

    async def _reload(self, engine: Engine, version: Version, fence: Fence) -> bool:
        """False if the engine is down again or too slow; its other lost versions keep their slots until it is
        back."""
        await self.store.commit((), fence=fence)  # loads are not fenced, so check the fence before each
        deadline = self.loader.clock() + RELOAD_SECONDS
        try:
            where = await self.loader.ensure_resident(
                version, lambda failed: None if failed else engine, deadline=deadline, reload_on=engine.name
            )
        except StoreUnavailableError:
            raise
        except (LoadFailedError, QuarantinedError) as error:
            log.error("Engine %s: reload of %s failed: %s", engine.name, version.id, error)
        except AdaptersError as error:
            log.warning("Engine %s: reload of %s postponed: %s", engine.name, version.id, error)
            return False
        else:
            if where == engine.name:  # not on an engine that a concurrent request had chosen
                self.loader.loads_since(version, where)  # no request is charged for it
                log.warning("Engine %s: %s reloaded after a restart", where, version.id)
        return True

    # -- adapters that are loaded without being assigned

    def _names_kept(self, engine: str, placed: Collection[str]) -> set[str]:
        """Names that the engine has refused to unload because it no longer holds the adapters. They take no
        memory, and to be rid of one, the engine would have to read it from disk again while all its requests
        wait."""
        process, names = self._kept.get(engine, (None, set()))
        if process != self.process(engine):
            names = set()
        names.difference_update(placed)
        self._kept[engine] = self.process(engine), names
        return names

    async def _unload_strays(self, engine: Engine, strays: set[str], fence: Fence) -> None:
        """Unload strays left by a worker that died during a load, or by a failed unload."""
        placed = await self.store.recency(engine.name)  # this worker's view may lag
        for name in sorted(strays - placed.keys()):
            await self.store.commit((), fence=fence)
            log.warning("Engine %s: unloading %s, which is not assigned to it", engine.name, name)
            try:
                if not await self.control.unload(engine, name):
                    self._kept[engine.name][1].add(name)
            except EngineError:
                return
