"""What a tenant's own administrators may register: counted and enforced in the transaction of each change.

Two registrations at a time change different documents, and each alone may be within the quota. So every
change that counts also replaces one document of the tenant, `self_service`: of two such changes that were
planned from the same reading, the second conflicts and is planned again. The document also has the times of
the tenant's recent uploads, by which they are limited over all workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from pydantic import TypeAdapter

from adapters.checks.validate import AdapterFacts
from adapters.errors import NotFoundError, QuotaExceededError
from adapters.model import Version
from adapters.registry.catalog import Catalog
from adapters.registry.change_context import ChangeContext
from adapters.registry.ingest import RegistrationTerms
from adapters.registry.transaction import Proposal, Reading
from adapters.sources.options import FetchOptions
from adapters.store.protocol.registry import Change
from gateway.errors import FlorinError
from gateway.operations.state import State
from gateway.operations.transaction import RegistryReading, change
from gateway.tenants.directory import Directory, Key, Tenant, load
from gateway.tenants.schemas.tenants import QuotaUse
from gateway.tenants.terms import Quotas
from gateway.units import HOUR

KIND: Final = "self_service"
_REMEMBERED: Final = 1000
"""Uploads, where there is no quota."""


@dataclass(frozen=True, slots=True)
class SelfService:
    """What is remembered of a tenant's own changes."""

    changes: int = 0
    """Counts those that are subject to a quota."""
    uploads: tuple[int, ...] = ()
    """When those of the last hour began, Unix microseconds, oldest first."""


_codec = TypeAdapter(SelfService)


def use(state: State, tenant: Tenant) -> dict[str, QuotaUse]:
    """Each quota of the tenant with what is used of it, in this worker's view."""
    counted = _counted(state.catalog, tenant.name)
    now = state.clock.now()
    used = {
        "adapters": len(counted),
        "versions": max((len(versions) for versions in counted.values()), default=0),
        "bytes": _bytes(counted),
        "keys": len(_keys(state.directory, tenant.name, now, replaced=False)),
        "uploads_per_hour": len(_recent(_read(state.follower.documents, tenant.name), now).uploads),
    }
    return {
        field.name: QuotaUse(limit=getattr(tenant.quotas, field.name), used=used.get(field.name))
        for field in fields(Quotas)
    }


def registration_terms(state: State, tenant: Tenant) -> RegistrationTerms:
    """For a registration by the tenant's own administrator."""
    quotas, settings = tenant.quotas, state.settings
    most = settings.max_adapter_bytes if quotas.bytes is None else quotas.bytes
    private = settings.allowed_sources if "private" in settings.tenant_source_kinds else ()
    fetching = FetchOptions(
        max_bytes=max(1, min(settings.max_adapter_bytes, most)), allow_private=private, own_access=False
    )

    def check_facts(facts: AdapterFacts) -> None:
        _check_rank(quotas, facts.rank)

    def admit(reading: ChangeContext, version: Version) -> Sequence[Change]:
        now = load(Tenant, reading.tenant(tenant.name))  # the commit fails if it is no longer this one
        check_version(now.quotas, reading.catalog, version)
        return [_bump(reading, state.follower.documents, tenant.name)]

    return RegistrationTerms(fetching, by_digest=False, check_facts=check_facts, admit=admit)


def check_version(quotas: Quotas, catalog: Catalog, version: Version) -> None:
    """Whether the tenant may have one more version, this one. Raises QuotaExceededError."""
    counted = _counted(catalog, version.tenant)
    _check_rank(quotas, version.rank)
    _check_adapters(quotas, counted, version.adapter)
    versions = counted.get(version.adapter, ())
    if quotas.versions is not None and len(versions) >= quotas.versions:
        raise QuotaExceededError(
            f"{version.adapter} has {len(versions)} of at most {quotas.versions} versions. Retire one that "
            "is no longer needed (florin adapter retire), or ask the operator for more."
        )
    registered = _bytes(counted)
    if quotas.bytes is not None and registered + version.size_bytes > quotas.bytes:
        raise QuotaExceededError(
            f"The tenant's versions have {registered:,} of at most {quotas.bytes:,} bytes, and this one has "
            f"{version.size_bytes:,}. Retire versions that are no longer needed (florin adapter retire), or "
            "ask the operator for more."
        )


def check_name(state: State, tenant: Tenant, adapter: str) -> None:
    """Refuse the name of one adapter too many before any file is sent. Raises QuotaExceededError."""
    _check_adapters(tenant.quotas, _counted(state.catalog, tenant.name), adapter)


async def count_upload(state: State, tenant: str) -> None:
    """Count an upload or a fetch that begins now. Raises FlorinError if the hour's are used up."""
    now = state.clock.now()

    def plan(reading: RegistryReading) -> Proposal[None]:
        limit = _quotas(reading.directory, tenant).uploads_per_hour
        before = _read(reading.documents or state.follower.documents, tenant)
        recent = _recent(before, now).uploads
        if limit is not None and len(recent) >= limit:
            seconds = max(1, -(-(recent[-limit] + HOUR - now) // 1_000_000)) if limit else 3600
            raise FlorinError(
                "upload_quota_exceeded",
                f"This tenant has begun {len(recent)} of at most {limit} uploads per hour. Wait, or ask the "
                "operator for more.",
                retry_after=seconds,
            )
        after = replace(before, uploads=(*recent, now)[-max(limit or 0, _REMEMBERED) :])
        return Proposal([_replaced(reading, state.follower.documents, tenant, after)], None)

    await change(state, plan)


def admit_key(state: State, reading: RegistryReading, tenant: str, now: int) -> Change:
    """Whether the tenant may have one more valid key. Raises QuotaExceededError; returns a change to commit
    with the key."""
    most = _quotas(reading.directory, tenant).keys
    valid = len(_keys(reading.directory, tenant, now, replaced=False))
    if most is not None and valid >= most:
        raise QuotaExceededError(
            f"The tenant has {valid} of at most {most} valid keys. Revoke one that is no longer used (florin "
            "key revoke), or ask the operator for more."
        )
    return _bump(reading, state.follower.documents, tenant)


def admit_rotation(state: State, reading: RegistryReading, tenant: str, now: int) -> Change:
    """The same for a key that replaces another. For a while both are valid, so that there may be twice as
    many in all."""
    most = _quotas(reading.directory, tenant).keys
    valid = len(_keys(reading.directory, tenant, now, replaced=True))
    if most is not None and valid >= 2 * most:
        raise QuotaExceededError(
            f"The tenant has {valid} of at most {2 * most} valid keys, replaced ones included. Revoke those "
            "that are no longer used (florin key revoke)."
        )
    return _bump(reading, state.follower.documents, tenant)


# -- steps


def _quotas(directory: Directory, tenant: str) -> Quotas:
    known = directory.tenants.get(tenant)
    if known is None:
        raise NotFoundError(f"There is no tenant {tenant!r}.")
    return known.quotas


def _check_rank(quotas: Quotas, rank: int) -> None:
    if quotas.max_rank is not None and rank > quotas.max_rank:
        raise QuotaExceededError(
            f"The adapter has rank {rank}, and this tenant's may have at most {quotas.max_rank}. Train one "
            "of a lower rank, or ask the operator for more."
        )


def _check_adapters(quotas: Quotas, counted: Mapping[str, Sequence[Version]], adapter: str) -> None:
    if adapter not in counted and quotas.adapters is not None and len(counted) >= quotas.adapters:
        raise QuotaExceededError(
            f"The tenant has {len(counted)} of at most {quotas.adapters} adapters. Remove one that is no "
            "longer needed (florin adapter remove), or ask the operator for more."
        )


def _counted(catalog: Catalog, tenant: str) -> dict[str, list[Version]]:
    """The tenant's adapters, with their versions that are not retired."""
    names = [name for name in catalog.adapters if name.startswith(f"{tenant}/")]
    return {name: [v for v in catalog.versions_of(name) if v.retired is None] for name in names}


def _bytes(counted: Mapping[str, Sequence[Version]]) -> int:
    return sum(version.size_bytes for versions in counted.values() for version in versions)


def _keys(directory: Directory, tenant: str, now: int, *, replaced: bool) -> list[Key]:
    """The tenant's valid keys; `replaced`: also those that will end with their rotation."""
    valid = (key for key in directory.keys.values() if key.own_tenant == tenant and key.valid(now))
    return [key for key in valid if replaced or not key.replaced_by]


def _read(documents: Mapping[str, Mapping[str, str]], tenant: str) -> SelfService:
    text = documents.get(KIND, {}).get(tenant)
    return SelfService() if text is None else _codec.validate_json(text)


def _recent(document: SelfService, now: int) -> SelfService:
    return replace(document, uploads=tuple(begun for begun in document.uploads if begun > now - HOUR))


def _bump(reading: Reading, view: Mapping[str, Mapping[str, str]], tenant: str) -> Change:
    before = _read(reading.documents or view, tenant)
    return _replaced(reading, view, tenant, replace(before, changes=before.changes + 1))


def _replaced(
    reading: Reading, view: Mapping[str, Mapping[str, str]], tenant: str, after: SelfService
) -> Change:
    """`view`: this worker's documents, for a reading of its views."""
    before = (reading.documents or view).get(KIND, {}).get(tenant)
    return Change(KIND, tenant, _codec.dump_json(after, exclude_defaults=True).decode(), expect=before)
