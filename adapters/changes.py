"""What each change of an adapter commits, decided purely from one reading of the registry.

Every plan's expectations are the documents that it was made from, so a stale reading makes a conflict, never
a lost change. `registration` reads, commits and retries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from adapters.catalog import Catalog, Documents
from adapters.errors import NotFoundError
from adapters.findings import Findings
from adapters.model import Adapter, AdapterName, BaseModel, Version, dump
from adapters.store import Change


@dataclass(frozen=True, slots=True)
class Registered:
    version: Version
    live: int | None
    """Number of the adapter's live version now."""
    created: bool
    """False: the adapter had a version of the same content already, and this is it."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What an adapter of one base model is checked against."""

    base: BaseModel
    ranks: tuple[int, ...]
    """The maximum ranks of its engines, sorted, each once."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The registry as read for one attempt: `documents` is None when it is this worker's view."""

    catalog: Catalog
    documents: Documents | None
    tenant_document: Callable[[str], str | None]

    def tenant(self, tenant: str) -> str:
        """The tenant's document. Raises NotFoundError."""
        if self.documents is None:
            text = self.tenant_document(tenant)
        else:
            text = self.documents.get("tenant", {}).get(tenant)
        if text is None:
            raise NotFoundError(f"There is no tenant {tenant!r}: create it first.")
        return text

    def adapter(self, name: AdapterName) -> Adapter:
        adapter = self.catalog.adapters.get(str(name))
        if adapter is None:
            raise NotFoundError(f"There is no adapter {str(name)!r}.")
        return adapter

    def expected(self, adapter: Adapter) -> str:
        """The adapter's document as the store should hold it."""
        return dump(adapter) if self.documents is None else self.documents["adapter"][adapter.name]

    def versions(self, adapter: Adapter) -> list[Version]:
        """Oldest first."""
        known = self.catalog.versions
        ids = (f"{adapter.name}@v{number}" for number in range(1, adapter.latest + 1))
        return [known[i] for i in ids if i in known]

    def version(self, adapter: Adapter, number: int) -> Version:
        version = self.catalog.versions.get(f"{adapter.name}@v{number}")
        if version is None:
            raise NotFoundError(f"There is no version {number} of adapter {adapter.name!r}.")
        return version


def fleet_for(reading: Reading, name: AdapterName, base_model: str | None) -> Fleet:
    """The base model that is meant, and its engines' ranks. Raises NotFoundError (of the tenant, too, before
    any file is read), RejectedError."""
    reading.tenant(name.tenant)
    catalog = reading.catalog
    if base_model is None and len(catalog.bases) > 1:
        findings = Findings()
        findings.add(
            "base_ambiguous",
            "Several base models are served, so the adapter's must be named.",
            found="no base_model",
            expected=f"one of {', '.join(sorted(catalog.bases))}",
        )
        findings.refuse_if_any(str(name))
    chosen = base_model if base_model is not None else next(iter(catalog.bases), None)
    if chosen is None:
        raise NotFoundError("No base model is served yet: add an engine first.")
    base = catalog.bases.get(chosen)
    if base is None:
        known = ", ".join(sorted(catalog.bases)) or "none"
        raise NotFoundError(f"There is no base model {chosen[:200]!r}; there is: {known}.")
    ranks = tuple(sorted({engine.max_rank for engine in catalog.fleet(chosen)}))
    if not ranks:
        raise NotFoundError(
            f"No engine serves base model {chosen!r}, so no rank can be checked: add one first."
        )
    return Fleet(base, ranks)


def plan_add(reading: Reading, name: AdapterName, version: Version) -> tuple[list[Change], Registered]:
    """`version.number` is given here; its engine name becomes valid with the commit, or never."""
    tenant = reading.tenant(name.tenant)
    # The tenant must still be there when the commit happens.
    changes = [Change("tenant", name.tenant, tenant, expect=tenant)]
    old = reading.catalog.adapters.get(str(name))
    if old is None:
        new = Adapter(str(name), live=1, latest=1)
    else:
        for same in reading.versions(old):
            if (same.digest, same.base_model) == (version.digest, version.base_model):
                # The commit changes nothing: it only proves that this is still so.
                return [*changes, _change_of(reading, old, old)], Registered(same, old.live, created=False)
        number = old.latest + 1
        new = replace(old, latest=number, live=number if old.live is None else old.live)
    version = replace(version, number=new.latest)
    changes.append(_change_of(reading, old, new))
    changes.append(Change("version", version.id, dump(version), expect=None))
    if new.pinned and new.live == version.number:
        changes.append(_pin(version, pinned=True))
    return changes, Registered(version, new.live, created=True)


def plan_promote(reading: Reading, name: AdapterName, number: int) -> tuple[list[Change], Adapter]:
    old = reading.adapter(name)
    version = reading.version(old, number)
    if old.live == number:
        return [_change_of(reading, old, old)], old
    history = old.history if old.live is None else (*old.history, old.live)
    new = replace(old, live=number, history=history)
    changes = [_change_of(reading, old, new)]
    if old.pinned:
        if old.live is not None:
            changes.append(_pin(reading.version(old, old.live), pinned=False))
        changes.append(_pin(version, pinned=True))
    return changes, new


def plan_rollback(reading: Reading, name: AdapterName) -> tuple[list[Change], Adapter]:
    previous = reading.adapter(name).previous
    if previous is None:
        raise NotFoundError(f"Adapter {str(name)!r} has no earlier live version to go back to.")
    return plan_promote(reading, name, previous)


def plan_pin(reading: Reading, name: AdapterName, *, pinned: bool) -> tuple[list[Change], Adapter]:
    old = reading.adapter(name)
    new = replace(old, pinned=pinned)
    changes = [_change_of(reading, old, new)]
    if old.live is not None:
        changes.append(_pin(reading.version(old, old.live), pinned=pinned))
    return changes, new


def plan_remove(reading: Reading, name: AdapterName) -> tuple[list[Change], tuple[Version, ...]]:
    adapter = reading.adapter(name)
    versions = reading.versions(adapter)
    changes = [Change("adapter", adapter.name, None, expect=reading.expected(adapter))]
    for version in versions:
        changes += [Change("version", version.id, None), _pin(version, pinned=False)]
    return changes, tuple(versions)


def _change_of(reading: Reading, old: Adapter | None, new: Adapter) -> Change:
    return Change("adapter", new.name, dump(new), expect=None if old is None else reading.expected(old))


def _pin(version: Version, *, pinned: bool) -> Change:
    return Change("pin", version.engine_name, f'{{"version":"{version.id}"}}' if pinned else None)
