"""ensure_resident(): one load, however many requests wait for it and on however many workers.

Within a worker, all who want a version share one flight. Between workers, the claim in the store decides
who loads; the others see it `loading` and wait for its event. A loader that dies lets its claim lapse.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from adapters.catalog import Catalog
from adapters.engine_control import EngineControl
from adapters.errors import (
    EngineError,
    EngineUnreachableError,
    LoadFailedError,
    NoEngineError,
    PlacementError,
)
from adapters.model import Engine, Version
from adapters.residency import Residency
from adapters.store import ClaimResult, Store

log = logging.getLogger(__name__)

GRACE_MS = 1_000
"""A fresh load is protected this long: its waiters are on their way, their leases not yet flushed."""
CLAIM_MS = 10_000
"""After this, a load's claim may be taken over. A load that takes longer is then claimed and done again,
which is harmless: the engine says that it has it already."""
RETRY_SECONDS = 0.1
"""Between claims while every slot is in use: leases of other workers end in batches of this rhythm."""
PATIENCE_SECONDS = 2.0
"""For a slot elsewhere than on the engines to be avoided."""
FIRST_BACKOFF, MAX_BACKOFF = 1.0, 30.0
"""Seconds for which a failed load answers at once, doubling."""
MAX_REFUSALS = 2
"""One engine's refusal may be the engine's own trouble; a second one's says that it is the adapter."""


class Loaded(StrEnum):
    OK = "ok"
    LOST = "lost"
    """The claim was no longer ours at the end."""
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


class Choose(Protocol):
    """Where to load, given the engines that have failed: an engine, or None when none is left."""

    def __call__(self, failed: Collection[str], /) -> Engine | None: ...


class Observer(Protocol):
    """Told of loads and evictions, for the metrics."""

    def adapter_load(self, engine: str, result: str, seconds: float) -> None: ...

    def eviction(self, engine: str) -> None: ...


@dataclass(slots=True)
class Flight:
    """One version's way onto an engine, shared by all in this worker who wait for it."""

    task: asyncio.Task[str]
    deadline: float
    waiters: int = 0


@dataclass(slots=True)
class Failure:
    reason: str
    until: float
    backoff: float


@dataclass(slots=True)
class Loader:
    store: Store
    catalog: Catalog
    residency: Residency
    control: EngineControl
    observer: Observer
    owner: str
    """This worker's name in claims."""
    usable: Callable[[str], bool]
    """Whether the engine of that name takes requests now."""
    changed: Callable[[float], Awaitable[None]]
    """Returns at the next change of the residency, or after so many seconds."""
    before_claim: Callable[[], Awaitable[None]]
    """Reports this worker's leases, so that its own requests are never evicted by its own claims."""
    clock: Callable[[], float] = time.monotonic
    _flights: dict[str, Flight] = field(default_factory=dict)
    _failures: dict[str, Failure] = field(default_factory=dict)
    _engine_locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    _loads: dict[tuple[str, str], int] = field(default_factory=dict)

    async def ensure_resident(
        self,
        version: Version,
        choose: Choose,
        *,
        deadline: float,
        reload_on: str | None = None,
        avoid: Collection[str] = (),
    ) -> str:
        """The name of an engine that holds `version`. `deadline` is on the loader's clock.

        `reload_on` names an engine that is assigned the version but answered that it does not know it.
        `avoid`: engines that may hold it, but have failed the request: better another load than those.
        Raises NoEngineError, LoadFailedError, PlacementError (the deadline), StoreUnavailableError.
        """
        name = version.engine_name
        failure = self._failures.get(name)
        if failure and self.clock() < failure.until:
            raise LoadFailedError(failure.reason)
        flight = self._flights.get(name)
        if flight is None or flight.task.done():
            flying = self._fly(version, choose, reload_on, frozenset(avoid))
            task = asyncio.create_task(flying, name=f"load {version.id}")
            flight = self._flights[name] = Flight(task, deadline)
            task.add_done_callback(lambda t: self._landed(name, t))
        flight.deadline = max(flight.deadline, deadline)
        flight.waiters += 1
        try:
            async with asyncio.timeout(max(0.0, deadline - self.clock())):
                return await asyncio.shield(flight.task)
        except TimeoutError:
            raise PlacementError(f"no slot for {version.id} was free in time") from None
        finally:
            flight.waiters -= 1

    def loads_since(self, version: Version | None, engine: str) -> int:
        """How often `version` was loaded on `engine` since somebody last asked: of all who waited for a load,
        the first to ask answers for it, and nobody twice."""
        if version is None or not self._loads:
            return 0
        return self._loads.pop((version.engine_name, engine), 0)

    async def close(self) -> None:
        """End what still flies. Its claims lapse by themselves."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _landed(self, name: str, task: asyncio.Task[str]) -> None:
        flight = self._flights.get(name)
        if flight is not None and flight.task is task:
            del self._flights[name]
        if task.cancelled():
            return
        error = task.exception()  # also marks it as seen, should every waiter have left
        if isinstance(error, LoadFailedError):
            last = self._failures.get(name)
            backoff = min(MAX_BACKOFF, last.backoff * 2) if last else FIRST_BACKOFF
            self._failures[name] = Failure(str(error), self.clock() + backoff, backoff)
        elif error is None:
            self._failures.pop(name, None)

    async def _fly(
        self, version: Version, choose: Choose, reload_on: str | None, avoid: frozenset[str]
    ) -> str:
        name, failed, refusals = version.engine_name, set[str](), list[LoadFailedError]()
        patience = self.clock() + PATIENCE_SECONDS
        again: Engine | None = None
        """Where the claim lapsed during the load: the engine has the version, and says so the next time."""
        while True:
            reloading = self.catalog.engines.get(reload_on) if reload_on else None
            engine = reloading or again or choose(failed)
            if engine is None or len(refusals) == MAX_REFUSALS:
                raise refusals[0] if refusals else NoEngineError(f"No engine can hold {version.id} now.")
            await self.before_claim()
            claim = await self.store.claim(
                name,
                engine.name,
                slots=engine.slots,
                owner=self.owner,
                ttl_ms=CLAIM_MS,
                ignore=self._useless(engine, failed | avoid),
                reload=reloading is not None,
            )
            again = None
            match claim.result:
                case ClaimResult.RESIDENT:
                    return claim.engine
                case ClaimResult.CLAIMED:
                    reload_on = None
                    result = await self._load(engine, version, claim.victim, refusals)
                    if result is Loaded.OK:
                        return engine.name
                    if result is Loaded.LOST:
                        again = engine
                        await self._pause(name)
                    else:
                        failed.add(engine.name)
                case ClaimResult.PINNED:
                    failed.add(engine.name)
                case ClaimResult.FULL if avoid and self.clock() > patience:
                    avoid = frozenset()  # rather where it has failed than nowhere
                case ClaimResult.LOADING:
                    reload_on = None
                    await self._pause(name)
                case ClaimResult.FULL:
                    await self._pause(name)

    def _useless(self, chosen: Engine, failed: Collection[str]) -> list[str]:
        """Engines whose residency does not help, because they take no requests now."""
        fleet = (e.name for e in self.catalog.fleet(chosen.base_model))
        return [e for e in fleet if e != chosen.name and (e in failed or not self.usable(e))]

    async def _pause(self, name: str) -> None:
        """Until something changed; gives up when nobody waits any more or all deadlines have passed."""
        flight = self._flights[name]
        if flight.waiters == 0 or self.clock() > flight.deadline:
            raise PlacementError("no slot was free in time")
        await self.changed(RETRY_SECONDS)

    async def _load(
        self, engine: Engine, version: Version, victim: str | None, refusals: list[LoadFailedError]
    ) -> Loaded:
        """Unload the victim, load, verify, confirm. An engine's refusal goes to `refusals`, in words for the
        client."""
        started = self.clock()
        result = Loaded.LOST
        try:
            async with self._engine_locks.setdefault(engine.name, asyncio.Lock()):
                if victim:
                    self.observer.eviction(engine.name)
                    await self.control.unload(engine, victim)
                await self.control.load(engine, version)
                if version.engine_name not in (await self.control.serving(engine)).loras:
                    raise EngineError(f"{engine.name} accepted {version.id} but does not list it")
            confirmed = await self.store.confirm(
                version.engine_name, engine.name, owner=self.owner, grace_ms=GRACE_MS
            )
            result = Loaded.OK if confirmed else Loaded.LOST
            loaded = version.engine_name, engine.name
            self._loads[loaded] = self._loads.get(loaded, 0) + 1
        except EngineUnreachableError:
            result = Loaded.UNREACHABLE
            await self._abandon(engine, version)
        except EngineError as error:
            result = Loaded.REFUSED
            log.error("loading %s on %s failed: %s", version.id, engine.name, error)
            words = _public(error, engine, version)
            refusals.append(LoadFailedError(f"{version.id} could not be loaded: {words}"))
            await self._abandon(engine, version)
        finally:
            self.observer.adapter_load(engine.name, result.value, self.clock() - started)
        return result

    async def _abandon(self, engine: Engine, version: Version) -> None:
        await self.store.abandon(version.engine_name, engine.name, owner=self.owner)


def _public(error: EngineError, engine: Engine, version: Version) -> str:
    """The engine's reason without what only operators should see: engine-side names, paths and URLs."""
    words = str(error).replace(version.engine_name, version.id).replace(version.path, "its files")
    return words.replace(f" at {engine.url}", "")
