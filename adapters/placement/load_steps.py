"""One version onto one engine: unload what must go, load, ask the engine's list, verify, confirm.

Whatever goes wrong, the slot is given back, and the engine is not left holding what nobody has verified.
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
from adapters.store.protocol import Store

log = logging.getLogger(__name__)

GRACE_MS = 1_000
"""A fresh load is protected this long: its waiters are on their way, their leases not yet flushed."""


class LoadResult(StrEnum):
    OK = "ok"
    LOST = "lost"
    """The claim was no longer ours at the end."""
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    SUSPECT = "engine_suspect"
    """The engine is not trusted."""
    QUARANTINED = "quarantined"
    """It answers wrongly."""


class LoadObserver(Protocol):
    """Told of loads and evictions, for the metrics."""

    def adapter_load(self, engine: str, result: str, seconds: float) -> None: ...

    def eviction(self, engine: str) -> None: ...


@dataclass(slots=True)
class LoadSteps:
    store: Store
    catalog: Catalog
    residency: Residency
    control: EngineClient
    observer: LoadObserver
    owner: str
    """This worker's name in claims."""
    clock: Callable[[], float]
    verifier: Verifier | None = None
    """None: what an engine says it has loaded is believed."""
    landed: dict[tuple[str, str], int] = field(default_factory=dict)
    """(version, engine) → how often, since somebody last asked."""
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def land(
        self, engine: Engine, version: Version, victim: str | None, refusals: list[LoadFailedError]
    ) -> LoadResult:
        """Unload the victim, load, verify, confirm. An engine's refusal goes to `refusals`, in words for the
        client. Raises QuarantinedError, StoreUnavailableError."""
        started = self.clock()
        result = LoadResult.LOST
        try:
            async with self._locks.setdefault(engine.name, asyncio.Lock()):
                if victim:
                    self.observer.eviction(engine.name)
                    await self.control.unload(engine, victim)
                    gone = self.catalog.by_engine_name.get(victim)
                    log.info(
                        "Engine %s: %s evicted for %s", engine.name, gone.id if gone else victim, version.id,
                        extra={"engine": engine.name, "adapter": gone.id if gone else victim},
                    )  # fmt: skip
                await self.control.load(engine, version)
                if version.engine_name not in (await self.control.serving(engine)).loras:
                    raise EngineError(f"{engine.name} accepted {version.id} but does not list it")
            if self.verifier:
                await self.verifier.verify(engine, version)
            confirmed = await self.store.confirm(
                version.engine_name, engine.name, owner=self.owner, grace_ms=GRACE_MS
            )
            result = LoadResult.OK if confirmed else LoadResult.LOST
            loaded = version.engine_name, engine.name
            self.landed[loaded] = self.landed.get(loaded, 0) + 1
            log.info(
                "Engine %s: %s loaded in %.2f s", engine.name, version.id, self.clock() - started,
                extra={"engine": engine.name, "adapter": version.id, "tenant": version.tenant},
            )  # fmt: skip
        except EngineUnreachableError:
            result = LoadResult.UNREACHABLE
            await self._abandon(engine, version)
        except QuarantinedError:
            result = LoadResult.QUARANTINED
            await self._take_down(engine, version)
            raise
        except EngineSuspectError as error:
            result = LoadResult.SUSPECT
            log.error("%s is not served by %s: %s", version.id, engine.name, error)
            await self._forget(engine, version)
            await self._abandon(engine, version)
        except EngineError as error:
            result = LoadResult.REFUSED
            log.error("loading %s on %s failed: %s", version.id, engine.name, error)
            words = _public(error, engine, version)
            refusals.append(LoadFailedError(f"{version.id} could not be loaded: {words}", engine.name))
            await self._forget(engine, version)
            await self._abandon(engine, version)
        finally:
            self.observer.adapter_load(engine.name, result.value, self.clock() - started)
        return result

    async def _take_down(self, engine: Engine, version: Version) -> None:
        """Off every engine. Requests that run finish: an engine that unloads only forgets the name."""
        for name in {engine.name, *self.residency.where(version.engine_name)}:
            placed = self.catalog.engines.get(name)
            if placed is not None:
                await self._forget(placed, version)
            await self.store.unplace(name, version.engine_name)

    async def _forget(self, engine: Engine, version: Version) -> None:
        """An engine that does not answer is set right by the reconciler when it does."""
        with contextlib.suppress(EngineError):
            await self.control.unload(engine, version.engine_name)

    async def _abandon(self, engine: Engine, version: Version) -> None:
        await self.store.abandon(version.engine_name, engine.name, owner=self.owner)


def _public(error: EngineError, engine: Engine, version: Version) -> str:
    """The engine's reason without what only operators should see: engine-side names, paths and URLs."""
    words = str(error).replace(version.engine_name, version.id).replace(version.path, "its files")
    return words.replace(f" at {engine.url}", "")
