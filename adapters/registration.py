"""Everything that changes adapters: add, promote, roll back, pin, remove.

Each change is one atomic commit whose expectations are the documents that it was planned from. It is planned
from this worker's view first; if that proves stale (a conflict, or something seems not to be there), from a
fresh snapshot. So of two that change one adapter at once, both succeed, one after the other.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import TypeVar

from adapters import sources
from adapters.artifacts import Artifact, ArtifactStore
from adapters.catalog import Catalog
from adapters.changes import (
    Fleet,
    Reading,
    Registered,
    fleet_for,
    plan_add,
    plan_pin,
    plan_promote,
    plan_remove,
    plan_rollback,
)
from adapters.errors import ConflictError, NotFoundError, RejectedError
from adapters.findings import Findings
from adapters.model import Adapter, AdapterName, Version
from adapters.store import Change, Store
from adapters.validate import AdapterFacts, validate

T = TypeVar("T")

_ATTEMPTS = 32
"""Of N changes of one adapter at once, each round of attempts lets one through."""
_INGESTS = 2
"""Adapters copied and hashed at a time: more would only make the disk seek."""

Plan = Callable[[Reading], tuple[list[Change], T]]
"""What to commit, and what to answer once that has succeeded. Pure."""


class Registrar:
    """`tenant_document`: the stored text of a tenant, as this worker's view has it, or None.
    `max_bytes`: of one version's files. `now`: Unix microseconds."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        artifacts: ArtifactStore,
        *,
        tenant_document: Callable[[str], str | None],
        max_bytes: int,
        now: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._artifacts = artifacts
        self._tenant_document = tenant_document
        self._max_bytes = max_bytes
        self._now = now
        self._ingesting = asyncio.Semaphore(_INGESTS)

    async def add_adapter(
        self, name: AdapterName, source: str, *, base_model: str | None = None, assume_base: bool = False
    ) -> Registered:
        """Fetch, check, store and register. The first version goes live; a later one when promoted.

        Raises RejectedError (all findings), NotFoundError (tenant, base model, engines), ConflictError,
        StoreUnavailableError, OSError (the artifact disk).
        """
        fleet = await self._fleet(name, base_model)
        try:
            facts, artifact = await self._ingest(name, source, fleet, assume_base=assume_base)
        except RejectedError:
            # This worker may not have heard yet of an engine or a config that another has just taken in.
            fresh = fleet_for(await self._fresh(), name, base_model)
            if fresh == fleet:
                raise
            fleet = fresh
            facts, artifact = await self._ingest(name, source, fleet, assume_base=assume_base)
        version = Version(
            adapter=str(name),
            number=0,
            digest=artifact.digest,
            engine_name=f"fl-{secrets.token_hex(10)}",
            path=str(artifact.path),
            base_model=fleet.base.name,
            rank=facts.rank,
            size_bytes=artifact.size_bytes,
            source=source,
            created=self._now(),
        )
        return await self._change(lambda reading: plan_add(reading, name, version))

    async def promote(self, name: AdapterName, number: int) -> Adapter:
        """Make a version live; its predecessor is where `rollback` goes. Idempotent."""
        return await self._change(lambda reading: plan_promote(reading, name, number))

    async def rollback(self, name: AdapterName) -> Adapter:
        """Make live what was live before; the second time, undo that. NotFoundError: nothing was."""
        return await self._change(lambda reading: plan_rollback(reading, name))

    async def pin(self, name: AdapterName, pinned: bool) -> Adapter:  # noqa: FBT001 - the value itself, not an option
        """Protect the live version from eviction, whichever it is, or stop doing so. Idempotent."""
        return await self._change(lambda reading: plan_pin(reading, name, pinned=pinned))

    async def remove(self, name: AdapterName) -> tuple[Version, ...]:
        """Forget the adapter and its versions, which are returned: the caller takes them off the engines.
        Their files stay, for an engine may still hold them."""
        return await self._change(lambda reading: plan_remove(reading, name))

    async def _fleet(self, name: AdapterName, base_model: str | None) -> Fleet:
        try:
            return fleet_for(self._view(), name, base_model)
        except (NotFoundError, RejectedError):
            return fleet_for(await self._fresh(), name, base_model)

    async def _ingest(
        self, name: AdapterName, source: str, fleet: Fleet, *, assume_base: bool
    ) -> tuple[AdapterFacts, Artifact]:
        def work() -> tuple[AdapterFacts, Artifact]:
            with self._artifacts.staging() as staged:
                findings = Findings()
                sources.fetch(source, staged, max_bytes=self._max_bytes, findings=findings)
                findings.refuse_if_any(str(name))
                facts = validate(
                    staged,
                    base=fleet.base,
                    max_rank=fleet.ranks[-1],
                    max_bytes=self._max_bytes,
                    assume_base=assume_base,
                    adapter=str(name),
                    fleet_ranks=fleet.ranks,
                )
                return facts, self._artifacts.publish(staged)

        async with self._ingesting:
            return await asyncio.to_thread(work)

    def _view(self) -> Reading:
        return Reading(self._catalog, None, self._tenant_document)

    async def _fresh(self) -> Reading:
        snapshot = await self._store.snapshot()
        catalog = Catalog()
        catalog.load(snapshot.documents)
        return Reading(catalog, snapshot.documents, self._tenant_document)

    async def _change(self, plan: Plan[T]) -> T:
        reading = self._view()
        for _ in range(_ATTEMPTS):
            try:
                changes, result = plan(reading)
                await self._store.commit(changes)
            except NotFoundError:
                if reading.documents is not None:
                    raise
            except ConflictError:
                pass
            else:
                return result
            reading = await self._fresh()
        raise ConflictError("The adapter is being changed by many others at once: try again.")
