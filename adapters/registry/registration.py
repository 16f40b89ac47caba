"""Changes adapters: add, promote, roll back, retire, pin, remove.

Each change is one atomic commit with its entry in the audit (see `transaction`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from adapters import sources
from adapters.checks.findings import Findings, shown
from adapters.checks.validate import AdapterFacts, validate
from adapters.errors import NotFoundError, RejectedError
from adapters.model import Adapter, AdapterName, Version
from adapters.progress import Progress
from adapters.registry.artifacts import Artifact, ArtifactStore, digest_of
from adapters.registry.catalog import Catalog
from adapters.registry.change_context import ChangeContext, FleetLimits, fleet_for
from adapters.registry.changes.live_version import UNGUARDED, CanaryTerms, plan_promote, plan_rollback
from adapters.registry.changes.planned_change import PlannedChange
from adapters.registry.changes.settings import plan_pin
from adapters.registry.changes.versions import Registered, plan_add, plan_remove, plan_retire
from adapters.registry.transaction import Proposal, transact
from adapters.sources import archive
from adapters.sources.options import FetchOptions
from adapters.sources.public_uri import public
from adapters.store.protocol.registry import Change, RegistryStore

T = TypeVar("T")

_INGESTS = 4
"""Adapters fetched, copied and hashed at a time. More would only make the disk seek; with fewer, one slow
server would delay the others."""

Plan = Callable[[ChangeContext], PlannedChange[T]]
"""A pure function. Raises AdaptersError for an impossible change."""


@dataclass(frozen=True, slots=True)
class Upload:
    """An archive on this host's disk. The caller deletes it."""

    path: Path
    name: str = ""
    """The uploader's name for it, for `Version.source`."""

    @property
    def source(self) -> str:
        return f"upload:{self.name}" if self.name else "upload"


def _any_facts(_: AdapterFacts) -> None:
    pass


def _any_version(_: ChangeContext, __: Version) -> Sequence[Change]:
    return ()


@dataclass(frozen=True, slots=True)
class RegistrationTerms:
    """What a registration may be, besides sound. The default limits nothing."""

    fetching: FetchOptions | None = None
    """How sources are read; None: as the registrar is configured."""
    by_digest: bool = True
    """Whether a digest may stand for files that are stored already. It must not where the files may be
    another tenant's: whoever learns a digest has not seen the files."""
    check_facts: Callable[[AdapterFacts], None] = _any_facts
    """Called before the files are stored. Raises AdaptersError."""
    admit: Callable[[ChangeContext, Version], Sequence[Change]] = _any_version
    """Called for a new version, in the plan of its commit. Returns changes to commit with it. Raises
    AdaptersError."""


NO_TERMS = RegistrationTerms()


class Registrar:
    """Applies every change to adapters and their versions. Called by `gateway.operations`.

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

    async def add_adapter(
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
            planned = plan_add(reading, name, version, number=number, vouched=digest is not None)
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
        are already stored, `source` is not read. Raises as `add_adapter`."""
        options = terms.fetching or self._fetching
        if progress is not None:
            options = replace(options, progress=progress)
        ingest = _Ingest(
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
            facts, artifact, found = await self._ingest(ingest, fleet)
        except RejectedError:
            # This worker may not know yet of an engine or config that another worker has just registered.
            fresh = fleet_for(await self._fresh(), name, base_model)
            if fresh == fleet:
                raise
            fleet = fresh
            facts, artifact, found = await self._ingest(ingest, fleet)
        return Version(
            adapter=str(name),
            number=0,
            digest=artifact.digest,
            engine_name=f"fl-{secrets.token_hex(10)}",
            path=str(artifact.path),
            base_model=fleet.base.name,
            rank=facts.rank,
            size_bytes=artifact.size_bytes,
            source=found,
            created=self._now(),
            warnings=facts.warnings,
            unverified_shapes=facts.unverified_shapes,
        )

    async def check(self, name: AdapterName, base_model: str | None = None) -> None:
        """Refuse what `add_adapter` would refuse regardless of the files. Raises NotFoundError,
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

    async def _ingest(self, ingest: _Ingest, fleet: FleetLimits) -> tuple[AdapterFacts, Artifact, str]:
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


@dataclass(frozen=True, slots=True)
class _Ingest:
    """Fetches, checks and publishes a version's files. Blocking."""

    artifacts: ArtifactStore
    adapter: str
    source: str | Upload
    options: FetchOptions
    digest: str | None
    terms: RegistrationTerms
    assume_base: bool
    unverified_shapes: bool

    def run(self, fleet: FleetLimits) -> tuple[AdapterFacts, Artifact, str]:
        """Return the facts, the artifact and the source without credentials."""
        known = self.digest if self.terms.by_digest else None
        kept = None if known is None else self.artifacts.find(known)
        if kept is not None:
            return self._check(kept.path, fleet), kept, self._public
        with self.artifacts.staging() as staged:
            found = self._fetch(staged)
            facts = self._check(staged, fleet)
            self.options.progress("store", 0, None)
            return facts, self.artifacts.publish(staged), found

    def _check(self, directory: Path, fleet: FleetLimits) -> AdapterFacts:
        self.options.progress("check", 0, None)
        facts = validate(
            directory,
            base=fleet.base,
            max_rank=fleet.ranks[-1],
            max_bytes=self.options.max_bytes,
            assume_base=self.assume_base,
            unverified_shapes=self.unverified_shapes,
            adapter=self.adapter,
            fleet_ranks=fleet.ranks,
            progress=self.options.progress,
        )
        self.terms.check_facts(facts)
        return facts

    @property
    def _public(self) -> str:
        return self.source.source if isinstance(self.source, Upload) else public(self.source)

    def _fetch(self, staged: Path) -> str:
        findings, options, where = Findings(), self.options, self._public
        if isinstance(self.source, Upload):
            archive.unpack(
                self.source.path,
                staged,
                max_bytes=options.max_bytes,
                findings=findings,
                progress=options.progress,
            )
        else:
            where = sources.fetch(self.source, staged, options=options, findings=findings)
        findings.refuse_if_any(self.adapter)
        if self.digest is None:
            return where
        found = f"sha256:{digest_of(staged)}"
        if found != self.digest:
            findings.add(
                "digest_mismatch",
                "The files do not match the expected digest.",
                found=found,
                expected=shown(self.digest),
            )
            findings.refuse_if_any(self.adapter)
        return where
