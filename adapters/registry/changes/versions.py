"""Versions of an adapter: registered, retired, and removed with their adapter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from adapters.errors import ConflictError, Finding, InUseError
from adapters.model import Adapter, AdapterName, PendingDeletion, Tombstone, Version, dump, fingerprint_ids
from adapters.registry.change_context import ChangeContext
from adapters.registry.changes.planned_change import PlannedChange, change_of, pins
from adapters.store.protocol.registry import Change

LAST = 999_999_999
"""Highest version number; names with more digits are not parsed."""


@dataclass(frozen=True, slots=True)
class Registered:
    version: Version
    live: int | None
    """The adapter's live version."""
    created: bool
    """False if the adapter already had a version with the same content, which is returned."""

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return self.version.warnings


def plan_register(
    reading: ChangeContext,
    name: AdapterName,
    version: Version,
    *,
    number: int | None = None,
    vouched: bool = False,
) -> PlannedChange[Registered]:
    """Assign `version.number`. Its engine name becomes valid with the commit, or never.

    `number` restores a version under its old number. A number that was used before is assigned again only if
    the caller has vouched for the content with a digest, so a retired version returns with its own files.
    Raises ConflictError.
    """
    tenant = reading.tenant(name.tenant)
    # The tenant must still exist when the commit happens.
    changes = [Change("tenant", name.tenant, tenant, expect=tenant)]
    old = reading.catalog.adapters.get(str(name))
    same = _same_content(reading, old, version)
    if old and same:
        if number not in (None, same.number):
            raise ConflictError(f"{same.id} already has these files, so v{number} cannot use them.")
        changes += [change_of(reading, old, old), reading.unchanged(same)]
        return PlannedChange(changes, Registered(same, old.live, created=False))
    tombstone = None if old else reading.catalog.tombstones.get(str(name))
    latest = tombstone.latest if tombstone else 0
    adapter = old or Adapter(str(name), live=None, latest=latest)
    check_one_base(reading.versions(adapter), version)
    given = adapter.latest + 1 if number is None else number
    if given > LAST:
        raise ConflictError(f"{name} has used its last version number, v{LAST}; use another name.")
    version = replace(version, number=given)
    retired = _in_place_of(reading, adapter, version, vouched=vouched)
    live = given if adapter.live is None else adapter.live
    new = replace(adapter, latest=max(adapter.latest, given), live=live)
    if old is None:
        # Without a tombstone now, there must be none when the commit happens.
        buried = reading.text("tombstone", str(name), tombstone) if tombstone else None
        changes.append(Change("tombstone", str(name), None, expect=buried))
    changes.append(Change("version", version.id, dump(version), expect=retired))
    changes += [change_of(reading, old, new), *pins(reading, old, new, version)]
    details: dict[str, Any] = {"digest": version.digest, "source": version.source}
    if version.unverified_shapes:
        details["unverified_shapes"] = True
    return PlannedChange(changes, Registered(version, live, created=True), "adapter.add", given, details)


def plan_retire(reading: ChangeContext, name: AdapterName, number: int, now: int) -> PlannedChange[Version]:
    """Make a version uncallable. Its files stay until the reconciler knows that no engine holds them."""
    old = reading.adapter(name)
    version = reading.version(old, number)
    if version.retired is not None:
        return PlannedChange([reading.unchanged(version)], version)
    if number in (old.live, old.canary):
        role, cure = (
            ("live", "promote another version") if number == old.live else ("the canary", "roll it back")
        )
        raise InUseError(f"{version.id} is {role}; {cure} first.")
    retired = replace(version, retired=now)
    changes = [
        Change("version", version.id, dump(retired), expect=reading.text("version", version.id, version)),
        change_of(reading, old, replace(old, history=_without(old, number))),
        *_delete_version(version, now),
    ]
    return PlannedChange(changes, retired, "adapter.retire", number)


def plan_remove(reading: ChangeContext, name: AdapterName, now: int) -> PlannedChange[tuple[Version, ...]]:
    adapter = reading.adapter(name)
    versions = reading.versions(adapter)
    tombstone = Tombstone(adapter.latest, now)
    changes = [
        Change("adapter", adapter.name, None, expect=reading.expected(adapter)),
        Change("tombstone", adapter.name, dump(tombstone)),
    ]
    for version in versions:
        changes.append(Change("version", version.id, None))
        if version.retired is None:
            changes += _delete_version(version, now)
    details = {"versions": [f"v{version.number}" for version in versions]}
    return PlannedChange(changes, tuple(versions), "adapter.remove", details=details)


def check_one_base(versions: Iterable[Version], new: Version) -> None:
    """An adapter's name means one base model. Raises ConflictError if one of its callable versions is for
    another one than `new`."""
    for version in versions:
        if version.retired is None and version.base_model != new.base_model:
            raise ConflictError(
                f"{version.id} is for base model {version.base_model}, and an adapter's name means one base "
                f"model: register the adapter for {new.base_model} under another name."
            )


def _same_content(reading: ChangeContext, adapter: Adapter | None, version: Version) -> Version | None:
    content = version.digest, version.base_model
    for known in reading.versions(adapter) if adapter else ():
        if (known.digest, known.base_model) == content and known.retired is None:
            return known
    return None


def _in_place_of(reading: ChangeContext, adapter: Adapter, version: Version, *, vouched: bool) -> str | None:
    """The document that this version replaces: None, or a retired version with the same files. Raises
    ConflictError."""
    old = reading.catalog.versions.get(version.id)
    if old and (old.retired is None or old.digest != version.digest):
        raise ConflictError(f"{version.id} exists with different files.")
    if version.number <= adapter.latest and not vouched:
        raise ConflictError(
            f"{version.id} was used before and can be restored only with the digest of its files."
        )
    return reading.text("version", old.id, old) if old else None


def _delete_version(version: Version, now: int) -> list[Change]:
    """The changes that delete an uncallable version's dependent documents and add its pending deletion."""
    name = version.engine_name
    pending_deletion = PendingDeletion(
        version=version.id, digest=version.digest, path=version.path, since=now
    )
    gone = [Change(kind, name, None) for kind in ("pin", "serving_status")]
    gone += [Change("fingerprint", id_, None) for id_ in fingerprint_ids(name)]
    return [Change("pending_deletion", name, dump(pending_deletion)), *gone]


def _without(adapter: Adapter, number: int) -> tuple[int, ...]:
    """The history without a removed version; adjacent duplicates are merged."""
    history: list[int] = []
    for past in adapter.history:
        if past != number and past != (history[-1] if history else None):
            history.append(past)
    if history and history[-1] == adapter.live:
        history.pop()
    return tuple(history)
