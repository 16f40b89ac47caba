"""Keeps versions where their operators want them: the leader plans, and carries out the moves.

The plan is pure (`adapters.placement.planner`). Loads go through the loader, so they compete with those of
requests by the same rules; a version is dropped only while no request uses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol, TypeVar

import orjson

from adapters.errors import AdaptersError, EngineError, StoreUnavailableError
from adapters.model import DEDICATED, Adapter, Engine, SlotState, Version, release_of
from adapters.placement.engine_client import EngineClient
from adapters.placement.loader import Loader
from adapters.placement.planned_fleet import FleetSnapshot, Move, PlacedVersion, PlannedEngine, PlannedVersion
from adapters.placement.planner import plan
from adapters.placement.residency import Residency
from adapters.registry.catalog import Catalog
from adapters.store.protocol import Store
from adapters.store.protocol.coordination import Fence

log = logging.getLogger(__name__)
T = TypeVar("T")

LOAD_SECONDS = 30.0
"""Time that one move may take."""
AMPLE = 1_000_000
"""Times its slots that an engine is taken to have where only wishes count."""
PORTION = 50
"""Engines, or versions, that are dealt with at once: more would stall the event loop."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What this worker knows about an engine."""

    serves: bool = True
    """It takes requests and answers."""
    open: bool = True
    """It takes loads: it is neither cordoned nor suspect, and not in slow start."""
    load_ms: float = 100.0
    """How long a load stalls it."""
    requests: int = 0
    """Running and waiting there, as it reports."""
    weight: float = 1.0
    """Relative cost per token."""


class MoveObserver(Protocol):
    def placement_move(self, kind: str) -> None: ...


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """A move that was carried out, for `florin explain`."""

    moved_at: int
    """Unix microseconds, UTC."""
    kind: str
    version: str
    """`acme/support@v3`."""
    engine: str
    why: str


Uses = Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]]
"""Engine → version → milliseconds since its last use; and version → requests in flight, over all workers."""


@dataclass(slots=True)
class Rebalancer:
    """Runs in the reconciler's leading worker. `interval`: seconds between plans; 0: none are made."""

    store: Store
    catalog: Catalog
    residency: Residency
    control: EngineClient
    loader: Loader
    status: Callable[[Engine], EngineStatus]
    observer: MoveObserver
    interval: float
    current: Callable[[], bool] = lambda: True
    """Whether the views are current; nothing is planned from stale views."""
    now: Callable[[], int] = lambda: time.time_ns() // 1000
    """Unix microseconds."""
    clock: Callable[[], float] = time.monotonic
    # Mutable:
    _loads: dict[str, float] = field(default_factory=dict)
    """Engine → when its last known load was in progress."""
    _busy: set[str] = field(default_factory=set)
    """Engines on which moves are being carried out."""
    _known: dict[str, Version] = field(default_factory=dict)
    """Versions as parsed, of `_generation` of the catalog: parsing thousands takes long."""
    _generation: int = -1

    async def run(self, fence: Fence) -> None:
        """Until cancelled. Raises FencedError."""
        self._loads, self._busy = {}, set()
        async with asyncio.TaskGroup() as moving:
            while True:
                with contextlib.suppress(StoreUnavailableError):
                    if self.current():
                        await self.tick(fence, moving)
                await asyncio.sleep(self.interval)

    async def tick(self, fence: Fence, moving: asyncio.TaskGroup) -> None:
        moves = await self.planned()
        if moves:
            await self.store.commit((), fence=fence)  # loads are not fenced, so check the fence before
        for name in {move.engine for move in moves}:
            here = [move for move in moves if move.engine == name]  # in order: a drop makes room for a load
            self._busy.add(name)
            moving.create_task(self._carry_out(here, fence), name=f"moves on {name}")

    async def planned(self) -> list[Move]:
        """Plan for all fleets. Raises StoreUnavailableError."""
        if self._generation != self.catalog.generation:
            self._generation, self._known = self.catalog.generation, {}
        self._note_loads()
        merged = {engine.merged_as for engine in self.catalog.engines.values() if engine.serves}
        candidates = self.catalog.pins | self._with_minimum() | merged
        moves: list[Move] = []
        for base in {engine.base_model for engine in self.catalog.engines.values()}:
            if await self._plan(base, candidates, None):  # mostly not, and then nothing more is asked
                holding = sorted({e.name for e in self.catalog.fleet(base)} & self.residency.engines())
                moves += await self._plan(base, candidates, await self._uses(holding))
        return [move for move in moves if move.engine not in self._busy]

    async def _plan(self, base: str, candidates: set[str], uses: Uses | None) -> Sequence[Move]:
        """Without `uses`: as if nothing were in use, and every engine had room."""
        snapshot = await self._snapshot(base, candidates, uses)
        return await asyncio.to_thread(plan, snapshot)  # 0.1 s for 500 engines

    async def _uses(self, engines: Sequence[str]) -> Uses:
        uses: dict[str, tuple[Mapping[str, int], Mapping[str, int]]] = {}
        for names in _portions(engines):
            uses |= await self.store.use(names)
        return uses

    def _note_loads(self) -> None:
        now = self.clock()
        for name in self.residency.engines():
            if self.residency.held(name).loading:
                self._loads[name] = now

    async def _snapshot(self, base: str, candidates: set[str], uses: Uses | None) -> FleetSnapshot:
        """`candidates`: versions to plan for although they may be nowhere."""
        fleet = list(self.catalog.fleet(base))
        every = uses is not None or any(engine.on_trial for engine in fleet)
        engines: list[PlannedEngine] = []
        for some in _portions(fleet):
            engines += (self._engine(engine, uses, candidates, every=every) for engine in some)
            await asyncio.sleep(0)
        names = sorted({name for engine in engines for name in engine.held} | candidates)
        versions: list[PlannedVersion] = []
        for batch in _portions(names):
            versions += filter(None, (self._version(name, base) for name in batch))
            await asyncio.sleep(0)
        return FleetSnapshot(tuple(engines), tuple(versions))

    def _engine(
        self, engine: Engine, uses: Uses | None, candidates: set[str], *, every: bool
    ) -> PlannedEngine:
        """Unless `every`, with only those versions placed there for which there can be a move: in a large
        fleet, operators have asked for nothing about most."""
        ages, leases = (uses or {}).get(engine.name, ({}, {}))
        every = every or DEDICATED in engine.all_labels
        status, name = self.status(engine), engine.name
        placed_versions = {
            version: PlacedVersion(
                state,
                leased=version in leases,
                idle=ages[version] / 1000 if version in ages else math.inf,
            )
            for version, state in self.residency.placed(name).items()
            if every or version in candidates or state is SlotState.LOADING or self._bound(version)
        }
        return PlannedEngine(
            name,
            engine.slots if uses is not None else engine.slots * AMPLE,
            engine.max_rank,
            engine.domain,
            engine.all_labels,
            serves=status.serves and engine.takes_requests and not engine.moving,
            open=status.open and engine.takes_adapters and name not in self._busy,
            only=None if engine.only is None else engine.merged_as,
            trial=engine.on_trial,
            requests=status.requests,
            load_ms=status.load_ms,
            since_load=self.clock() - self._loads.get(name, -math.inf),
            weight=status.weight,
            held=placed_versions,
            release=engine.release,
        )

    def _bound(self, name: str) -> bool:
        """Whether operators limit on which engines, or on how many, the version may be."""
        adapter = self.catalog.by_engine_name.ids.get(name, "").partition("@")[0]
        document = self.catalog.adapters.get(adapter)
        limited = document is not None and document.max_replicas is not None
        return limited or bool(self.loader.requires(adapter.partition("/")[0]))

    def _version(self, name: str, base: str) -> PlannedVersion | None:
        """None: callers cannot reach it, or it belongs to another fleet."""
        version = self._known.get(name) or self.catalog.by_engine_name.get(name)
        if version is None:
            return None
        self._known[name] = version
        if version.retired is not None or version.base_model != base:
            return None
        adapter = self.catalog.adapters.get(version.adapter)
        if adapter is None or name in self.catalog.serving_statuses:
            return None
        return PlannedVersion(
            name,
            version.rank,
            requires=self.loader.requires(version.tenant),
            min_replicas=adapter.min_replicas if version.number == adapter.live else 0,
            max_replicas=adapter.max_replicas,
            pinned=name in self.catalog.pins,
            release=release_of(version.min_vllm),
        )

    def _with_minimum(self) -> set[str]:
        """Live versions of adapters with a minimum of replicas."""
        live = (self._live(a) for a in self.catalog.adapters.values() if a.min_replicas)
        return {version.engine_name for version in live if version is not None}

    def _live(self, adapter: Adapter) -> Version | None:
        return self.catalog.versions.get(f"{adapter.name}@v{adapter.live}")

    # -- moves

    async def _carry_out(self, moves: list[Move], fence: Fence) -> None:
        """Moves on one engine, in order. Stops at the first that fails."""
        try:
            for move in moves:
                version = self.catalog.by_engine_name.get(move.version)
                engine = self.catalog.engines.get(move.engine)
                if version is None or engine is None or not await self._move(move, version, engine, fence):
                    return
        except AdaptersError as error:  # a lost fence, too: the loop hears of it as well
            log.warning("Moves on engine %s failed: %s", moves[0].engine, error)
        finally:
            self._busy.discard(moves[0].engine)

    async def _move(self, move: Move, version: Version, engine: Engine, fence: Fence) -> bool:
        if move.kind == "drop":
            done = await self.drop(version, engine, fence)
        else:
            done = await self._load(version, engine)
        if done:
            log.info(
                "Engine %s: %s %s: %s", engine.name, move.kind, version.id, move.why,
                extra={"engine": engine.name, "adapter": version.id, "tenant": version.tenant},
            )  # fmt: skip
            self.observer.placement_move(move.kind)
            record = MoveRecord(self.now(), move.kind, version.id, engine.name, move.why)
            await self.store.record_move(orjson.dumps(asdict(record)).decode())
        return done

    async def _load(self, version: Version, engine: Engine) -> bool:
        self._loads[engine.name] = self.clock()
        done = await self.loader.open_replica(version, engine, deadline=self.loader.clock() + LOAD_SECONDS)
        self.loader.loads_since(version, engine.name)  # no request is charged for it
        return done

    async def drop(self, version: Version, engine: Engine, fence: Fence) -> bool:
        if version.engine_name in await self.store.leases(engine.name):
            return False  # it has come into use since
        await self.store.unplace(engine.name, version.engine_name, fence=fence)
        with contextlib.suppress(EngineError):  # the reconciler unloads it later
            await self.control.unload(engine, version.engine_name)
        return True


def _portions(engines: Sequence[T]) -> Iterator[Sequence[T]]:
    return (engines[first : first + PORTION] for first in range(0, len(engines), PORTION))
