"""Engines that their hosts have shut down on purpose: known to be stopped, and forgotten after a while.

The agent of `florin engine run` says that it stops its engine, and then falls silent. From then on the engine
is no problem to anybody. If it comes back within the time, as after a restart of its host, it finds its
placement; later it registers as a new one, with the key that it has. Names of pods that never come back do
not pile up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from adapters.errors import ConflictError
from adapters.model import Engine, dump, load
from adapters.registry.catalog import Catalog
from adapters.store.protocol import AuditNote, Change, Fence, Store

log = logging.getLogger(__name__)


def due(
    engines: Iterable[Engine], living: Collection[str], *, now: int, after: int
) -> Iterator[tuple[Engine, Engine | None]]:
    """What is known, and what should be: None for what is to be forgotten. `living`: whose agents are heard;
    `now`, `after`: microseconds; 0: nothing is forgotten."""
    for engine in engines:
        if not engine.stopping:
            continue
        if engine.name in living:  # it drains, or was only out of earshot
            if engine.stopped:
                yield engine, replace(engine, stopped=0)
        elif not engine.stopped:
            yield engine, replace(engine, stopped=now)
        elif after and now - engine.stopped >= after:
            yield engine, None


@dataclass(slots=True)
class StoppedEngines:
    """`hours` after which one is forgotten; 0: never."""

    store: Store
    catalog: Catalog
    hours: float
    now: Callable[[], int] = lambda: time.time_ns() // 1000

    async def look(self, fence: Fence) -> None:
        """Raises FencedError, StoreUnavailableError."""
        if not any(engine.stopping for engine in self.catalog.engines.values()):
            return
        living, now, after = await self.store.beats(), self.now(), int(self.hours * 3600e6)
        if not any(due(self.catalog.engines.values(), living, now=now, after=after)):
            return
        # The text that is stored, which an older Florin may have written otherwise.
        stored = (await self.store.snapshot()).documents.get("engine", {})
        for old, new in due((load(Engine, text) for text in stored.values()), living, now=now, after=after):
            change = Change("engine", old.name, dump(new) if new else None, expect=stored[old.name])
            note = None if new else AuditNote("reconciler", "engine.remove", old.name)
            try:
                await self.store.commit([change], audit=note, fence=fence)
            except ConflictError:  # somebody has just changed it: next time
                continue
            if new is None:
                log.info("Engine %s was stopped %g hours ago, and is forgotten", old.name, self.hours)
            elif new.stopped:
                log.info("Engine %s is stopped, as its host announced", old.name)
