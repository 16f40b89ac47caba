"""When the files of a version that nobody may call any more can go, and their going.

An engine reads a version's files again whenever its own caches have dropped the weights, and dies if they
are missing. So they go only when no engine can hold the version: it is placed nowhere, every registered
engine has been asked and does not list it (one that does not answer may hold it), and a grace has passed, in
which requests that ran have ended. And only when nothing else refers to the same content.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from adapters.catalog import Catalog
from adapters.engine_control import EngineControl
from adapters.errors import EngineError
from adapters.model import Engine, Grave, Version
from adapters.residency import Residency
from adapters.store import AuditNote, Change, Fence, Store
from adapters.trash import Trash

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    ready: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Digest → engine names of all its graves: the content can go."""
    closed: tuple[str, ...] = ()
    """Engine names of graves whose content is needed by another version: only they themselves can go."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Engine name → why its grave stays, for a person."""


def plan(
    graves: Mapping[str, Grave],
    versions: Iterable[Version],
    listed: Mapping[str, frozenset[str] | None],
    placed: Collection[str],
    *,
    now: int,
    grace: int,
) -> Plan:
    """`listed`: engine → the adapters that it lists, or None where it did not answer. `placed`: engine names
    of versions that have a slot somewhere. `now`, `grace`: microseconds."""
    needed = {v.digest for v in versions if v.retired is None}
    waiting = {
        name: why
        for name, grave in graves.items()
        if (why := _why_it_stays(name, grave, listed, placed, now=now, grace=grace))
    }
    closed, groups = [], dict[str, list[str]]()
    for name, grave in sorted(graves.items()):
        if name in waiting:
            continue
        if grave.digest in needed:
            closed.append(name)
        else:
            groups.setdefault(grave.digest, []).append(name)
    held = {graves[name].digest for name in waiting}
    for digest in held & groups.keys():
        for name in groups.pop(digest):
            waiting[name] = "another version with the same content has a grave that must stay"
    return Plan({digest: tuple(names) for digest, names in groups.items()}, tuple(closed), waiting)


def _why_it_stays(
    name: str,
    grave: Grave,
    listed: Mapping[str, frozenset[str] | None],
    placed: Collection[str],
    *,
    now: int,
    grace: int,
) -> str:
    if name in placed:
        return "it still has a slot"
    holders = sorted(engine for engine, names in listed.items() if names is not None and name in names)
    if holders:
        return f"{', '.join(holders)} still holds it"
    if now - grave.since < grace:
        return "its grace has not passed"
    silent = sorted(engine for engine, names in listed.items() if names is None)
    if silent:
        return f"{', '.join(silent)} does not answer, and may hold it"
    return ""


@dataclass(slots=True)
class Gravedigger:
    """`grace`: seconds. `now`: Unix microseconds."""

    store: Store
    catalog: Catalog
    residency: Residency
    control: EngineControl
    trash: Trash
    grace: float
    probe_timeout: float
    now: Callable[[], int] = lambda: time.time_ns() // 1000

    async def dig(self, fence: Fence) -> None:
        """Once. Raises FencedError, StoreUnavailableError; what a disk refuses is logged, and tried again."""
        try:
            await self._dig(fence)
        except OSError as error:
            log.warning("Files of versions that are gone cannot be removed: %s", error)

    async def _dig(self, fence: Fence) -> None:
        graves = dict(self.catalog.graves)
        if not graves:
            await self._settle(fence)  # what a worker that died has left half way
            return
        found = await self.survey(graves)
        for name in found.closed:
            await self._close(name, graves[name], fence, freed=False)
        for digest, names in found.ready.items():
            await self.store.commit((), fence=fence)
            if self.trash.holds(digest, graves[names[0]].path):
                taken = await asyncio.to_thread(self.trash.take, digest)
                if taken is False:
                    continue  # it may be needed: by a version on its way, or by another installation
        deleted = await self._settle(fence)
        for digest, names in found.ready.items():
            if digest in deleted or not await asyncio.to_thread(self._there, digest, graves[names[0]]):
                for name in names:
                    await self._close(name, graves[name], fence, freed=digest in deleted)

    async def survey(self, graves: Mapping[str, Grave]) -> Plan:
        """What can go now, as far as the engines say."""
        engines = list(self.catalog.engines.values())
        lists = await asyncio.gather(*(self._list(engine) for engine in engines))
        placed = {v for name in self.residency.engines() for v in self.residency.slots(name)}
        return plan(
            graves,
            self.catalog.versions.values(),
            {engine.name: names for engine, names in zip(engines, lists, strict=True)},
            placed,
            now=self.now(),
            grace=int(self.grace * 1e6),
        )

    async def _list(self, engine: Engine) -> frozenset[str] | None:
        try:
            return (await self.control.serving(engine, timeout=self.probe_timeout)).loras
        except EngineError:
            return None

    async def _settle(self, fence: Fence) -> set[str]:
        """The second look: by the registry itself, after the content was taken away."""
        if await asyncio.to_thread(self.trash.empty):
            return set()
        await self.store.commit((), fence=fence)
        catalog = Catalog()
        catalog.load((await self.store.snapshot()).documents)
        needed = {v.digest for v in catalog.versions.values() if v.retired is None}
        return await asyncio.to_thread(self.trash.settle, needed.__contains__)

    def _there(self, digest: str, grave: Grave) -> bool:
        return self.trash.holds(digest, grave.path) and self.trash.has(digest)

    async def _close(self, name: str, grave: Grave, fence: Fence, *, freed: bool) -> None:
        adapter, _, number = grave.version.rpartition("@")
        details = {"digest": grave.digest, "files": freed}
        note = AuditNote("reconciler", "version.erase", adapter, number, details)
        await self.store.commit([Change("grave", name, None)], audit=note, fence=fence)
        log.info("%s is gone for good%s", grave.version, ", with its files" if freed else "")
