"""Loads one version on one engine: make room, load, check the engine's model list, verify, confirm.

On any failure the slot is released and the unverified version is unloaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from adapters.errors import (
    EngineError,
    EngineSuspectError,
    EngineUnreachableError,
    LoadFailedError,
    QuarantinedError,
)
from adapters.model import Engine, Version
from adapters.placement.engine_client import EngineClient
from adapters.placement.residency import Residency
from adapters.placement.verification import Verifier
from adapters.registry.catalog import Catalog
from adapters.store.protocol.placement import Claim, PlacementStore

log = logging.getLogger(__name__)

GRACE_MS = 1_000
"""How long a fresh load or activation is protected from eviction, until the leases of its waiters are
flushed."""


class LoadResult(StrEnum):
    OK = "ok"
    LOST = "lost"
    """The claim lapsed or was taken over before the load finished, or the version was unloaded meanwhile."""
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    SUSPECT = "engine_suspect"
    """The engine is suspect."""
    QUARANTINED = "quarantined"
    """The version failed verification."""


class LoadObserver(Protocol):
    """Receives loads and evictions, for metrics and traces."""

    def adapter_load(self, engine: Engine, version: Version, result: str, seconds: float) -> None:
        """Called in the load's task, whose context is that of the request that began the load, if one did."""

    def eviction(self, engine: str) -> None: ...


class LoadTimer(Protocol):
    """Receives how long the engine itself took for each load, without verification or waiting for other
    loads."""

    def __call__(self, engine: Engine, version: Version, seconds: float, /) -> None: ...


@dataclass(slots=True)
class LoadSteps:
    """Performs one load on an engine once the claim is held. Used by `Loader` only.

    Loads on one engine run one at a time. Whatever the outcome, the claim is confirmed or abandoned, and a
    version that failed is unloaded.
    """

    store: PlacementStore
    catalog: Catalog
    residency: Residency
    control: EngineClient
    observer: LoadObserver
    owner: str
    """This worker's name in claims."""
    clock: Callable[[], float]
    timed: LoadTimer
    verifier: Verifier | None = None
    """If None, loads are not verified."""
    loads: dict[tuple[str, str], int] = field(default_factory=dict)
    """(version, engine) → loads since the last call of `Loader.loads_since`."""
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def load_and_verify(
        self, engine: Engine, version: Version, claim: Claim, refusals: list[LoadFailedError]
    ) -> LoadResult:
        """Make room, load, verify, confirm. An engine's refusal is appended to `refusals`, worded for
        the client. Raises QuarantinedError, StoreUnavailableError."""
        started = self.clock()
        result = LoadResult.LOST
        self._record_eviction(claim, version)
        try:
            async with self._locks.setdefault(engine.name, asyncio.Lock()):
                for name in claim.unload:
                    await self.control.unload(engine, name)
                began = self.clock()
                await self.control.load(engine, version)
                self.timed(engine, version, self.clock() - began)
                if (await self.control.serving(engine)).lacks(version.engine_name):
                    raise EngineError(f"{engine.name} accepted {version.id} but does not list it")
            verified = await self.verifier.verify(engine, version) if self.verifier else ""
            confirmed = await self.store.confirm(
                version.engine_name, engine.name, owner=self.owner, grace_ms=GRACE_MS, verified=verified
            )
            result = LoadResult.OK if confirmed else LoadResult.LOST
            loaded = version.engine_name, engine.name
            self.loads[loaded] = self.loads.get(loaded, 0) + 1
            log.info(
                "Engine %s: %s loaded in %.2f s", engine.name, version.id, self.clock() - started,
                extra={"engine": engine.name, "adapter": version.id, "tenant": version.tenant},
            )  # fmt: skip
        except EngineUnreachableError:
            result = LoadResult.UNREACHABLE
            await self._abandon(engine, version)
        except QuarantinedError:
            result = LoadResult.QUARANTINED
            await self._unload_everywhere(engine, version)
            raise
        except EngineSuspectError as error:
            result = LoadResult.SUSPECT
            log.error("Engine %s: %s not served: %s", engine.name, version.id, error)
            await self._forget(engine, version)
            await self._abandon(engine, version)
        except EngineError as error:
            if error.status == 404 and await self._was_unloaded(engine, version):
                log.warning("Engine %s: %s was unloaded during its load; retrying", engine.name, version.id)
            else:
                result = LoadResult.REFUSED
                log.error("Engine %s: load of %s failed: %s", engine.name, version.id, error)
                words = _public(error, engine, version)
                refusals.append(LoadFailedError(f"{version.id} could not be loaded: {words}", engine.name))
                await self._forget(engine, version)
            await self._abandon(engine, version)
        finally:
            self.observer.adapter_load(engine, version, result.value, self.clock() - started)
        return result

    async def activated(self, engine: Engine, version: Version, claim: Claim) -> None:
        """The version was cached, so it is ready. It was verified when it was loaded."""
        self._record_eviction(claim, version)
        for name in claim.unload:
            with contextlib.suppress(EngineError):  # the reconciler unloads it
                await self.control.unload(engine, name)

    def _record_eviction(self, claim: Claim, version: Version) -> None:
        """Count and log the version that lost its slot to `version`, if any."""
        if claim.victim is None:
            return
        self.observer.eviction(claim.engine)
        gone = self.catalog.by_engine_name.get(claim.victim)
        name = gone.id if gone else claim.victim
        log.info(
            "Engine %s: %s evicted for %s", claim.engine, name, version.id,
            extra={"engine": claim.engine, "adapter": name},
        )  # fmt: skip

    async def _was_unloaded(self, engine: Engine, version: Version) -> bool:
        """Whether the version left the engine after it was loaded. An earlier claim may have made it the
        victim of another version, whose load came late."""
        try:
            return (await self.control.serving(engine)).lacks(version.engine_name)
        except EngineError:
            return False

    async def _unload_everywhere(self, engine: Engine, version: Version) -> None:
        """Unload the version from every engine. Running requests finish: an engine that removes the weights
        reads them again at its next step."""
        for name in {engine.name, *self.residency.where(version.engine_name)}:
            placed = self.catalog.engines.get(name)
            if placed is not None:
                await self._forget(placed, version)
            await self.store.unplace(name, version.engine_name)

    async def _forget(self, engine: Engine, version: Version) -> None:
        """Unload, ignoring errors: the reconciler cleans up an engine that does not respond now."""
        with contextlib.suppress(EngineError):
            await self.control.unload(engine, version.engine_name)

    async def _abandon(self, engine: Engine, version: Version) -> None:
        await self.store.abandon(version.engine_name, engine.name, owner=self.owner)


def _public(error: EngineError, engine: Engine, version: Version) -> str:
    """The engine's message without engine-side names, paths and URLs, which only operators may see."""
    words = str(error).replace(version.engine_name, version.id).replace(version.path, "its files")
    return words.replace(f" at {engine.url}", "")
