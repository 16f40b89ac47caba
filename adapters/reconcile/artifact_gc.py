"""Garbage collection of the files of removed and retired versions.

An engine rereads a version's files whenever its caches have dropped the weights, and dies if they are
missing. Files are therefore deleted only when no engine can hold the version: it has no slot, every
registered engine has been asked and does not list it (an engine that does not respond may hold it), and a
grace period for running requests has passed. Nothing else may refer to the same content.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from adapters.drivers.driver import Listing
from adapters.errors import EngineError
from adapters.model import Engine, PendingDeletion, Version
from adapters.placement.engine_client import EngineClient
from adapters.placement.residency import Residency
from adapters.reconcile.removers import Remover
from adapters.registry.catalog import Catalog
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.registry import AuditNote, Change, RegistryStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    ready: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Digest → engine names of all its pending deletions; the content can be deleted."""
    closed: tuple[str, ...] = ()
    """Engine names of pending deletions that can be closed but whose content another version needs."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Engine name → why its files must stay, as a sentence."""


def held(engine: Engine, listing: Listing, catalog: Catalog) -> frozenset[str]:
    """Names of the versions whose files the engine may still read: those that it lists. One that lists none
    reads again what it was started with, and else only what a request names."""
    if listing.loras is not None:
        return listing.loras
    return frozenset(v.engine_name for v in catalog.versions.values() if v.id in (engine.only or ()))


def plan(
    pending_deletions: Mapping[str, PendingDeletion],
    versions: Iterable[Version],
    listed: Mapping[str, frozenset[str] | None],
    placed: Collection[str],
    *,
    now: int,
    grace: int,
) -> CollectionPlan:
    """Decide what can be deleted. `listed`: engine → the adapters that it lists, or None if it did not
    respond. `placed`: engine names of versions that have a slot. `now`, `grace`: microseconds."""
    needed = {v.digest for v in versions if v.retired is None}
    waiting = {
        name: reason
        for name, pending_deletion in pending_deletions.items()
        if (reason := _why_it_stays(name, pending_deletion, listed, placed, now=now, grace=grace))
    }
    closed, groups = [], dict[str, list[str]]()
    for name, pending_deletion in sorted(pending_deletions.items()):
        if name in waiting:
            continue
        if pending_deletion.digest in needed:
            closed.append(name)
        else:
            groups.setdefault(pending_deletion.digest, []).append(name)
    waiting_digests = {pending_deletions[name].digest for name in waiting}
    for digest in waiting_digests & groups.keys():
        for name in groups.pop(digest):
            waiting[name] = "another pending deletion of the same content must wait"
    return CollectionPlan({digest: tuple(names) for digest, names in groups.items()}, tuple(closed), waiting)


def _why_it_stays(
    name: str,
    pending_deletion: PendingDeletion,
    listed: Mapping[str, frozenset[str] | None],
    placed: Collection[str],
    *,
    now: int,
    grace: int,
) -> str:
    if name in placed:
        return "the version still has a slot"
    holders = sorted(engine for engine, names in listed.items() if names is not None and name in names)
    if holders:
        return f"{', '.join(holders)} still holds it"
    if now - pending_deletion.since < grace:
        return "its grace period has not passed"
    silent = sorted(engine for engine, names in listed.items() if names is None)
    if silent:
        return f"{', '.join(silent)} does not respond and may hold it"
    return ""


@dataclass(slots=True)
class ArtifactCollector:
    """Deletes the files of pending deletions. Run by the leading reconciler only. `grace` in seconds; `now`
    returns Unix microseconds."""

    store: RegistryStore
    catalog: Catalog
    residency: Residency
    control: EngineClient
    remover: Remover
    grace: float
    probe_timeout: float
    now: Callable[[], int] = lambda: time.time_ns() // 1000

    async def collect(self, fence: Fence) -> None:
        """Run one collection. Raises FencedError, StoreUnavailableError. Disk errors are logged and
        retried."""
        try:
            await self._collect(fence)
        except OSError as error:
            log.warning("Artifact garbage collection failed, will retry: %s", error)

    async def _collect(self, fence: Fence) -> None:
        pending_deletions = dict(self.catalog.pending_deletions)
        if not pending_deletions:
            await self._delete_detached(fence)  # left unfinished by a worker that died
            return
        collection = await self.plan_now(pending_deletions)
        for name in collection.closed:
            await self._close(name, pending_deletions[name], fence, freed=False)
        for digest, names in collection.ready.items():
            await self.store.commit((), fence=fence)
            if self.remover.holds(digest, pending_deletions[names[0]].path):
                taken = await asyncio.to_thread(self.remover.detach, digest)
                if taken is False:
                    continue  # a version being registered, or another installation, may need it
        deleted = await self._delete_detached(fence)
        for digest, names in collection.ready.items():
            if digest in deleted or not await asyncio.to_thread(
                self._still_exists, digest, pending_deletions[names[0]]
            ):
                for name in names:
                    await self._close(name, pending_deletions[name], fence, freed=digest in deleted)

    async def plan_now(self, pending_deletions: Mapping[str, PendingDeletion]) -> CollectionPlan:
        """Ask every engine what it lists, and plan what can be deleted now."""
        engines = list(self.catalog.engines.values())
        lists = await asyncio.gather(*(self._list(engine) for engine in engines))
        placed = {v for name in self.residency.engines() for v in self.residency.placed(name)}
        return plan(
            pending_deletions,
            self.catalog.with_digests({pending.digest for pending in pending_deletions.values()}),
            {engine.name: names for engine, names in zip(engines, lists, strict=True)},
            placed,
            now=self.now(),
            grace=int(self.grace * 1e6),
        )

    async def _list(self, engine: Engine) -> frozenset[str] | None:
        try:
            return held(engine, await self.control.serving(engine, timeout=self.probe_timeout), self.catalog)
        except EngineError:
            return None

    async def _delete_detached(self, fence: Fence) -> set[str]:
        """Check the detached content against a fresh snapshot of the registry, then delete or restore it."""
        if await asyncio.to_thread(self.remover.is_empty):
            return set()
        await self.store.commit((), fence=fence)
        catalog = Catalog()
        catalog.load((await self.store.snapshot()).documents)
        needed = {v.digest for v in catalog.versions.values() if v.retired is None}
        return await asyncio.to_thread(self.remover.delete_or_restore, needed.__contains__)

    def _still_exists(self, digest: str, pending_deletion: PendingDeletion) -> bool:
        return self.remover.holds(digest, pending_deletion.path) and self.remover.exists(digest)

    async def _close(
        self, name: str, pending_deletion: PendingDeletion, fence: Fence, *, freed: bool
    ) -> None:
        adapter, _, number = pending_deletion.version.rpartition("@")
        details = {"digest": pending_deletion.digest, "files": freed}
        note = AuditNote("reconciler", "version.erase", adapter, number, details)
        await self.store.commit([Change("pending_deletion", name, None)], audit=note, fence=fence)
        log.info("Erased %s%s", pending_deletion.version, " and its files" if freed else "")
