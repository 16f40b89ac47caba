"""The registry as read for one change of an adapter, with the lookups that changes need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from adapters.checks.findings import Findings
from adapters.checks.shapes import TEXT_NAMES_SINCE
from adapters.errors import LoadFailedError, NotFoundError, QuarantinedError
from adapters.model import Adapter, AdapterName, BaseModel, Engine, Tombstone, Version, dump, release_of
from adapters.registry.catalog import Catalog
from adapters.registry.transaction import Reading
from adapters.store.protocol.registry import Change


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """The base model and engine limits that an adapter is checked against."""

    base: BaseModel
    ranks: tuple[int, ...]
    """Distinct maximum ranks of its engines, sorted."""
    text_rank: int
    """See `validate`."""


@dataclass(frozen=True, slots=True)
class ChangeContext(Reading):
    """The registry as read for one attempt to change an adapter."""

    tenant_document: Callable[[str], str | None]

    def tenant(self, tenant: str) -> str:
        """The tenant's document. Raises NotFoundError."""
        if self.documents is None:
            text = self.tenant_document(tenant)
        else:
            text = self.documents.get("tenant", {}).get(tenant)
        if text is None:
            raise NotFoundError(f"Tenant {tenant!r} does not exist; create it first.")
        return text

    def adapter(self, name: AdapterName) -> Adapter:
        adapter = self.catalog.adapters.get(str(name))
        if adapter is None:
            raise NotFoundError(f"There is no adapter {str(name)!r}.")
        return adapter

    def expected(self, adapter: Adapter) -> str:
        """The adapter's document as expected in the store."""
        return self.text("adapter", adapter.name, adapter)

    def text(self, kind: str, id_: str, document: Adapter | Version | Tombstone) -> str:
        """A document as the store should hold it."""
        return self.stored(kind, id_, dump(document))

    def unchanged(self, version: Version) -> Change:
        """A change that only proves that the version is still the one that was read."""
        return self.proof("version", version.id, dump(version))

    def versions(self, adapter: Adapter) -> list[Version]:
        """Oldest first."""
        return self.catalog.versions_of(adapter.name)

    def version(self, adapter: Adapter, number: int) -> Version:
        version = self.catalog.versions.get(f"{adapter.name}@v{number}")
        if version is None:
            raise NotFoundError(f"There is no version {number} of adapter {adapter.name!r}.")
        return version

    def callable_version(self, adapter: Adapter, number: int, *, failed_too: bool = False) -> Version:
        """Raises NotFoundError (also if it is retired), QuarantinedError, LoadFailedError (unless
        `failed_too`)."""
        version = self.version(adapter, number)
        if version.retired is not None:
            raise NotFoundError(f"{version.id} is retired; register its files again as a new version.")
        serving_status = self.catalog.serving_statuses.get(version.engine_name)
        if serving_status is not None and not (failed_too and serving_status.state == "failed"):
            kind = QuarantinedError if serving_status.state == "quarantined" else LoadFailedError
            raise kind(serving_status.reason)
        return version


def fleet_for(reading: ChangeContext, name: AdapterName, base_model: str | None) -> FleetLimits:
    """Determine the base model and its engines' limits. Raises NotFoundError (also for the tenant, before any
    file is read), RejectedError."""
    reading.tenant(name.tenant)
    catalog = reading.catalog
    if base_model is None:
        base_model = _base_of(catalog, name)
    if base_model is None and len(catalog.bases) > 1:
        findings = Findings()
        findings.add(
            "base_ambiguous",
            "Several base models are served, so the adapter's base model must be given.",
            found="no base_model",
            expected=f"one of {', '.join(sorted(catalog.bases))}",
        )
        findings.refuse_if_any(str(name))
    chosen = base_model if base_model is not None else next(iter(catalog.bases), None)
    if chosen is None:
        raise NotFoundError("No base model is served yet; register an engine first.")
    base = catalog.bases.get(chosen)
    if base is None:
        known = ", ".join(sorted(catalog.bases)) or "none"
        raise NotFoundError(f"There is no base model {chosen[:200]!r}. Known: {known}.")
    fleet = [engine for engine in catalog.fleet(chosen) if not engine.serves]
    ranks = tuple(sorted({engine.max_rank for engine in fleet}))
    if not ranks:
        raise NotFoundError(
            f"No engine serves base model {chosen!r}, so the rank cannot be checked; register one first."
        )
    return FleetLimits(base, ranks, text_rank(fleet))


def text_rank(fleet: Iterable[Engine]) -> int:
    """See `validate`."""
    since = release_of(TEXT_NAMES_SINCE)
    return max((engine.max_rank for engine in fleet if engine.release >= since), default=0)


def _base_of(catalog: Catalog, name: AdapterName) -> str | None:
    """The base model that the adapter's name means already."""
    bases = {v.base_model for v in catalog.versions_of(str(name)) if v.retired is None}
    return bases.pop() if len(bases) == 1 else None
