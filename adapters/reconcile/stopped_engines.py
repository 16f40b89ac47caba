"""Tracks engines that their hosts shut down on purpose, and removes them after a while.

The agent (`florin engine run`) announces that it stops its engine, and its heartbeats then end. From then on
a missing engine is expected. If it returns in time, as after a restart of its host, it keeps its placement;
later it registers as a new engine with its existing key. This keeps the names of terminated pods from piling
up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from adapters.errors import ConflictError
from adapters.model import Engine, dump, load
from adapters.registry.catalog import Catalog
from adapters.store.protocol import Store
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.registry import AuditNote, Change

log = logging.getLogger(__name__)


def due(
    engines: Iterable[Engine], living: Collection[str], *, now: int, after: int
) -> Iterator[tuple[Engine, Engine | None]]:
    """Pairs of a current engine and what should replace it, None to remove it. `living`: engines whose agents
    send heartbeats. `now`, `after` in microseconds; an `after` of 0 removes nothing."""
    for engine in engines:
        if not engine.stopping:
            continue
        if engine.name in living:  # it is draining, or its heartbeats were delayed
            if engine.stopped:
                yield engine, replace(engine, stopped=0)
        elif not engine.stopped:
            yield engine, replace(engine, stopped=now)
        elif after and now - engine.stopped >= after:
            yield engine, None


@dataclass(slots=True)
class StoppedEngines:
    """`hours`: time until a stopped engine is removed; 0 for never."""

    store: Store
    catalog: Catalog
    hours: float
    now: Callable[[], int] = lambda: time.time_ns() // 1000

    async def update(self, fence: Fence) -> None:
        """Raises FencedError, StoreUnavailableError."""
        if not any(engine.stopping for engine in self.catalog.engines.values()):
            return
        living, now, after = await self.store.heartbeats(), self.now(), int(self.hours * 3600e6)
        if not any(due(self.catalog.engines.values(), living, now=now, after=after)):
            return
        # Expect the stored text; an older Florin may have serialized it differently.
        stored = (await self.store.snapshot()).documents.get("engine", {})
        for old, new in due((load(Engine, text) for text in stored.values()), living, now=now, after=after):
            change = Change("engine", old.name, dump(new) if new else None, expect=stored[old.name])
            note = None if new else AuditNote("reconciler", "engine.remove", old.name)
            try:
                await self.store.commit([change], audit=note, fence=fence)
            except ConflictError:  # changed concurrently: retry next time
                continue
            if new is None:
                log.info("Engine %s: removed, stopped for %g hours", old.name, self.hours)
            elif new.stopped:
                log.info("Engine %s: stopped by its host", old.name)
