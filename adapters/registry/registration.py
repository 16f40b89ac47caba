"""Changes adapters: register, promote, roll back, retire, pin, remove.

Each change is one atomic commit with its entry in the audit (see `transaction`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from adapters.checks.validate import AdapterFacts
from adapters.errors import NotFoundError, RejectedError
from adapters.model import Adapter, AdapterName, Version
from adapters.progress import Progress
from adapters.registry.artifacts import Artifact, ArtifactStore
from adapters.registry.catalog import Catalog
from adapters.registry.change_context import ChangeContext, FleetLimits, fleet_for
from adapters.registry.changes.live_version import UNGUARDED, CanaryTerms, plan_promote, plan_rollback
from adapters.registry.changes.planned_change import PlannedChange
from adapters.registry.changes.settings import plan_pin
from adapters.registry.changes.versions import Registered, plan_register, plan_remove, plan_retire
from adapters.registry.ingest import NO_TERMS, Ingest, RegistrationTerms, Upload
from adapters.registry.transaction import Proposal, transact
from adapters.sources.options import FetchOptions
from adapters.store.protocol.registry import RegistryStore

T = TypeVar("T")

_INGESTS = 4
"""Adapters fetched, copied and hashed at a time. More would only make the disk seek; with fewer, one slow
server would delay the others."""

Plan = Callable[[ChangeContext], PlannedChange[T]]
"""A pure function. Raises AdaptersError for an impossible change."""


class Registrar:
    """Applies every change to adapters and their versions. Called by `gateway.fleet.adapters.operations`.

    `tenant_document` returns a tenant's stored text from this worker's view, or None. `fetching`: limits for
    reading sources. `now` returns Unix microseconds.

    In all methods, `actor` is the name for the audit."""

    def __init__(
        self,
        store: RegistryStore,
        catalog: Catalog,
        artifacts: ArtifactStore,
        *,
        tenant_document: Callable[[str], str | None],
        fetching: FetchOptions,
        now: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._artifacts = artifacts
        self._tenant_document = tenant_document
        self._fetching = fetching
        self._now = now
        self._ingesting = asyncio.Semaphore(_INGESTS)

    async def register(
        self,
        name: AdapterName,
        source: str | Upload,
        *,
        base_model: str | None = None,
        assume_base: bool = False,
        unverified_shapes: bool = False,
        digest: str | None = None,
        number: int | None = None,
        terms: RegistrationTerms = NO_TERMS,
        actor: str = "",
        progress: Progress | None = None,
    ) -> Registered:
        """Fetch, check, store and register. The first version goes live; a later one when promoted.

        `assume_base`, `unverified_shapes`: see `validate`. `digest`: the expected digest, `sha256:<hex>`.
        `number` restores the version under that number.
        `progress` is called from another thread; an exception that it raises aborts the work and propagates.
        Raises RejectedError (all findings), NotFoundError (tenant, base model, engines), ConflictError,
        StoreUnavailableError, OSError (the artifact disk), and what the `terms` raise.
        """
        version = await self.prepare(
            name,
            source,
            base_model=base_model,
            assume_base=assume_base,
            unverified_shapes=unverified_shapes,
            digest=digest,
            terms=terms,
            progress=progress,
        )

        def plan(reading: ChangeContext) -> PlannedChange[Registered]:
            planned = plan_register(reading, name, version, number=number, vouched=digest is not None)
            if planned.answer.created:
                planned.changes.extend(terms.admit(reading, planned.answer.version))
            return planned

        return await self.change(name, actor, plan)

    async def prepare(
        self,
        name: AdapterName,
        source: str | Upload,
        *,
        base_model: str | None = None,
        assume_base: bool = False,
        unverified_shapes: bool = False,
        digest: str | None = None,
        terms: RegistrationTerms = NO_TERMS,
        progress: Progress | None = None,
    ) -> Version:
        """Check and store a version without registering it; its number is 0. If the files with this `digest`
        are already stored, `source` is not read. Raises as `register`."""
        options = terms.fetching or self._fetching
        if progress is not None:
            options = replace(options, progress=progress)
        ingest = Ingest(
            self._artifacts,
            str(name),
            source,
            options,
            digest,
            terms,
            assume_base=assume_base,
            unverified_shapes=unverified_shapes,
        )
        fleet = await self._fleet(name, base_model)
        try:
            facts, artifact, public_source = await self._ingest(ingest, fleet)
        except RejectedError:
            # This worker may not know yet of an engine or config that another worker has just registered.
            fresh = fleet_for(await self._fresh(), name, base_model)
            if fresh == fleet:
                raise
            fleet = fresh
            facts, artifact, public_source = await self._ingest(ingest, fleet)
        return Version(
            adapter=str(name),
            number=0,
            digest=artifact.digest,
            engine_name=f"fl-{secrets.token_hex(10)}",
            path=artifact.location,
            base_model=fleet.base.name,
            rank=facts.rank,
            size_bytes=artifact.size_bytes,
            source=public_source,
            created=self._now(),
            warnings=facts.warnings,
            unverified_shapes=facts.unverified_shapes,
            min_vllm=facts.min_vllm,
        )

    async def check(self, name: AdapterName, base_model: str | None = None) -> None:
        """Refuse what `register` would refuse regardless of the files. Raises NotFoundError,
        RejectedError, StoreUnavailableError."""
        await self._fleet(name, base_model)

    def loadable_version(self, name: AdapterName, number: int) -> Version:
        """A version that may be loaded, from this worker's view. Raises NotFoundError (also if it is
        retired), QuarantinedError."""
        reading = self._view()
        return reading.callable_version(reading.adapter(name), number, failed_too=True)

    async def promote(
        self,
        name: AdapterName,
        number: int,
        *,
        weight: int = 100,
        terms: CanaryTerms = UNGUARDED,
        actor: str = "",
    ) -> Adapter:
        """Make a version live, or with a `weight` of 1 to 99 percent a canary beside the live version.
        Idempotent. Raises NotFoundError, InUseError (a canary that is already live), CanaryHeldError,
        QuarantinedError, LoadFailedError."""
        terms = replace(terms, now=self._now())
        return await self.change(
            name, actor, lambda reading: plan_promote(reading, name, number, weight, terms)
        )

    async def rollback(self, name: AdapterName, *, actor: str = "") -> Adapter:
        """End the canary; without one, return to the previous live version, one step further back each time.
        Raises NotFoundError if there is none, otherwise as `promote`."""
        return await self.change(name, actor, lambda reading: plan_rollback(reading, name))

    async def retire(self, name: AdapterName, number: int, *, actor: str = "") -> Version:
        """Make a version uncallable; the caller unloads it from the engines. Idempotent. Raises InUseError if
        it is live or the canary."""
        return await self.change(name, actor, lambda reading: plan_retire(reading, name, number, self._now()))

    async def pin(self, name: AdapterName, pinned: bool, *, actor: str = "") -> Adapter:  # noqa: FBT001 - the value itself, not an option
        """Protect the current live version and canary from eviction, or stop protecting them. Idempotent."""
        return await self.change(name, actor, lambda reading: plan_pin(reading, name, pinned=pinned))

    async def remove(self, name: AdapterName, *, actor: str = "") -> tuple[Version, ...]:
        """Remove the adapter and return its versions, which the caller unloads from the engines. Version
        numbers are never reused. The files stay until no engine can hold them."""
        return await self.change(name, actor, lambda reading: plan_remove(reading, name, self._now()))

    async def _fleet(self, name: AdapterName, base_model: str | None) -> FleetLimits:
        try:
            return fleet_for(self._view(), name, base_model)
        except (NotFoundError, RejectedError):
            return fleet_for(await self._fresh(), name, base_model)

    async def _ingest(self, ingest: Ingest, fleet: FleetLimits) -> tuple[AdapterFacts, Artifact, str]:
        async with self._ingesting:
            return await asyncio.to_thread(ingest.run, fleet)

    def _view(self) -> ChangeContext:
        return ChangeContext(self._catalog, None, self._tenant_document)

    async def _fresh(self) -> ChangeContext:
        snapshot = await self._store.snapshot()
        catalog = Catalog()
        catalog.load(snapshot.documents)
        return ChangeContext(catalog, snapshot.documents, self._tenant_document)

    async def change(self, name: AdapterName, actor: str, plan: Plan[T]) -> T:
        """Commit what `plan` makes of the registry. Raises what `plan` raises, ConflictError,
        StoreUnavailableError."""

        def proposal(reading: ChangeContext) -> Proposal[T]:
            planned = plan(reading)
            return Proposal(planned.changes, planned.answer, planned.note(actor, name))

        answer, _ = await transact(self._store, proposal, view=self._view(), fresh=self._fresh)
        return answer
