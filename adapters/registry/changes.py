"""Plans the commit of each change of an adapter. Pure functions of one reading of the registry.

Each plan expects the documents that it was made from, so a stale reading causes a conflict, never a lost
update. `transaction` reads, commits and retries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from adapters.errors import CanaryHeldError, ConflictError, Finding, InUseError, NotFoundError
from adapters.model import (
    Adapter,
    AdapterName,
    CanaryOutcome,
    Guard,
    PendingDeletion,
    Tombstone,
    Version,
    dump,
    fingerprint_ids,
)
from adapters.registry.change_context import ChangeContext
from adapters.store.protocol.registry import AuditNote, Change

T = TypeVar("T")

LAST = 999_999_999
"""Highest version number; names with more digits are not parsed."""
HISTORY = 32
"""Number of steps that rollback can go back."""


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


@dataclass(frozen=True, slots=True)
class PlannedChange(Generic[T]):
    """The changes to commit, the result to return after the commit, and the audit details."""

    changes: list[Change]
    answer: T
    action: str = ""
    """If empty, nothing changes, and the commit only asserts that this still holds."""
    version: int | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def note(self, actor: str, name: AdapterName) -> AuditNote | None:
        if not self.action:
            return None
        version = "" if self.version is None else f"v{self.version}"
        return AuditNote(actor, self.action, str(name), version, self.details)


def plan_add(
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
        changes += [_change_of(reading, old, old), reading.unchanged(same)]
        return PlannedChange(changes, Registered(same, old.live, created=False))
    tombstone = None if old else reading.catalog.tombstones.get(str(name))
    latest = tombstone.latest if tombstone else 0
    adapter = old or Adapter(str(name), live=None, latest=latest)
    check_one_base(reading.versions(adapter), version)
    given = adapter.latest + 1 if number is None else number
    if given > LAST:
        raise ConflictError(f"{name} has used its last version number, v{LAST}; add it under another name.")
    version = replace(version, number=given)
    retired = _in_place_of(reading, adapter, version, vouched=vouched)
    live = given if adapter.live is None else adapter.live
    new = replace(adapter, latest=max(adapter.latest, given), live=live)
    if old is None:
        # Without a tombstone now, there must be none when the commit happens.
        buried = reading.text("tombstone", str(name), tombstone) if tombstone else None
        changes.append(Change("tombstone", str(name), None, expect=buried))
    changes.append(Change("version", version.id, dump(version), expect=retired))
    changes += [_change_of(reading, old, new), *_pins(reading, old, new, version)]
    details: dict[str, Any] = {"digest": version.digest, "source": version.source}
    if version.unverified_shapes:
        details["unverified_shapes"] = True
    return PlannedChange(changes, Registered(version, live, created=True), "adapter.add", given, details)


@dataclass(frozen=True, slots=True)
class CanaryTerms:
    """How a promotion guards the canary."""

    guard: Guard | Literal["keep"] | None = "keep"
    """keep: that of the same canary, if it has one."""
    force: bool = False
    """Raise the weight although the guard holds it, which ends the hold."""
    now: int = 0
    """Unix microseconds, UTC."""


UNGUARDED = CanaryTerms()


def plan_promote(
    reading: ChangeContext,
    name: AdapterName,
    number: int,
    weight: int = 100,
    terms: CanaryTerms = UNGUARDED,
) -> PlannedChange[Adapter]:
    """Make a version live, or with `weight` below 100 a canary beside the live version. Raises NotFoundError,
    InUseError, CanaryHeldError, QuarantinedError, LoadFailedError."""
    old = reading.adapter(name)
    version = reading.callable_version(old, number)
    same = number == old.canary
    if same and not terms.force:
        check_hold(old, weight)
    if weight < 100:
        if old.live in (None, number):
            raise InUseError(f"{version.id} is already live; a canary must be a different version.")
        new = _compared(old, number, weight, terms)
        action = "adapter.canary"
        details: dict[str, Any] = {"weight": weight, "live": f"v{old.live}"}
        if old.canary not in (None, number):
            details["instead_of"] = f"v{old.canary}"
        if new.guard is not None:
            details["guard"] = new.guard.action
    else:
        history = old.history if old.live in (None, number) else _pushed(old.history, old.live)
        new = replace(_without_canary(old), live=number, history=history)
        action, details = "adapter.promote", {"previous": _label(old.live)}
    if same and old.held and terms.force:
        details["held"] = old.outcome.reason if old.outcome else ""
    if new == old:
        return PlannedChange([_change_of(reading, old, old)], old)
    changes = [*_switch(reading, old, new), *_still_callable(reading, version)]
    return PlannedChange(changes, new, action, number, details)


def check_hold(adapter: Adapter, weight: int) -> None:
    """Raises CanaryHeldError if the guard holds the canary at less than `weight`."""
    if adapter.held and adapter.outcome is not None and weight > adapter.weight:
        held = f"{adapter.name}@v{adapter.canary}"
        raise CanaryHeldError(f"The guard holds {held} at {adapter.weight} %: {adapter.outcome.reason}")


def plan_rollback(
    reading: ChangeContext, name: AdapterName, outcome: CanaryOutcome | None = None
) -> PlannedChange[Adapter]:
    """End the canary; without one, return to the previous live version. `outcome`: why, if a guard does it.
    Raises as `plan_promote`."""
    old = reading.adapter(name)
    if old.canary is not None:
        new = replace(_without_canary(old), outcome=outcome)
        details: dict[str, Any] = {"canary": f"v{old.canary}", "weight": old.weight}
        if outcome is not None:
            details["reason"] = outcome.reason
        return PlannedChange(_switch(reading, old, new), new, "adapter.rollback", old.live, details)
    if old.previous is None:
        raise NotFoundError(f"Adapter {str(name)!r} has no previous live version to roll back to.")
    version = reading.callable_version(old, old.previous)
    new = replace(_without_canary(old), live=old.previous, history=old.history[:-1])
    changes = [*_switch(reading, old, new), *_still_callable(reading, version)]
    return PlannedChange(changes, new, "adapter.rollback", new.live, {"from": _label(old.live)})


def plan_verdict(
    reading: ChangeContext, name: AdapterName, since: int, outcome: CanaryOutcome, weight: int = 100
) -> PlannedChange[Adapter]:
    """Carry out what a guard decided about the comparison that began at `since`. If that has ended meanwhile,
    or the same was decided already, nothing changes: so several leaders, or one that dies and is followed by
    another, do no harm. `weight`: the next one, for `promote`. Raises as `plan_promote`."""
    old = reading.adapter(name)
    if (old.canary, old.canary_since) != (outcome.version, since) or old.held:
        return PlannedChange([_change_of(reading, old, old)], old)
    if outcome.verdict == "rollback":
        return plan_rollback(reading, name, outcome)
    if outcome.verdict == "hold":
        new = replace(old, outcome=outcome)
        details = {"weight": old.weight, "reason": outcome.reason}
        return PlannedChange(_switch(reading, old, new), new, "adapter.hold", old.canary, details)
    planned = plan_promote(reading, name, outcome.version, weight, CanaryTerms(now=outcome.at))
    if weight < 100:
        return planned
    new = replace(planned.answer, outcome=outcome)
    changes = [*_switch(reading, old, new), *_still_callable(reading, reading.version(old, outcome.version))]
    return replace(planned, changes=changes, answer=new)


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
        _change_of(reading, old, replace(old, history=_without(old, number))),
        *_delete_version(version, now),
    ]
    return PlannedChange(changes, retired, "adapter.retire", number)


def plan_pin(reading: ChangeContext, name: AdapterName, *, pinned: bool) -> PlannedChange[Adapter]:
    old = reading.adapter(name)
    new = replace(old, pinned=pinned)
    if new == old:
        return PlannedChange([_change_of(reading, old, old)], old)
    return PlannedChange(
        _switch(reading, old, new), new, "adapter.pin" if pinned else "adapter.unpin", old.live
    )


def plan_scale(
    reading: ChangeContext, name: AdapterName, bounds: Mapping[str, int | None]
) -> PlannedChange[Adapter]:
    """`bounds`: new values of `min_replicas` and `max_replicas`; what is left out stays. Raises
    NotFoundError, ConflictError."""
    old = reading.adapter(name)
    new = replace(old, **bounds)  # type: ignore[arg-type]  # only these two fields
    if new.max_replicas is not None and new.min_replicas > new.max_replicas:
        raise ConflictError(
            f"At least {new.min_replicas} and at most {new.max_replicas} replicas exclude each other."
        )
    if new == old:
        return PlannedChange([_change_of(reading, old, old)], old)
    details = {
        field: {"old": getattr(old, field), "new": getattr(new, field)}
        for field in bounds
        if getattr(old, field) != getattr(new, field)
    }
    return PlannedChange([_change_of(reading, old, new)], new, "adapter.scale", details=details)


def plan_cost_centre(reading: ChangeContext, name: AdapterName, label: str) -> PlannedChange[Adapter]:
    """`label`: empty removes it. Raises NotFoundError."""
    old = reading.adapter(name)
    new = replace(old, cost_centre=label)
    if new == old:
        return PlannedChange([_change_of(reading, old, old)], old)
    details = {"cost_centre": {"old": old.cost_centre, "new": label}}
    return PlannedChange([_change_of(reading, old, new)], new, "adapter.label", details=details)


def plan_eval_policy(
    reading: ChangeContext, name: AdapterName, *, required: bool, data_sha256: str
) -> PlannedChange[Adapter]:
    """Raises NotFoundError."""
    old = reading.adapter(name)
    new = replace(old, require_eval=required, eval_data=data_sha256)
    if new == old:
        return PlannedChange([_change_of(reading, old, old)], old)
    details = {
        "require_eval": {"old": old.require_eval, "new": new.require_eval},
        "data_sha256": {"old": old.eval_data, "new": new.eval_data},
    }
    return PlannedChange([_change_of(reading, old, new)], new, "adapter.eval_policy", details=details)


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
                f"model: add the adapter for {new.base_model} under another name."
            )


# -- steps


def _compared(old: Adapter, canary: int, weight: int, terms: CanaryTerms) -> Adapter:
    """With this canary. Whatever changes of it begins another comparison with the live version; a hold stays
    until it is overridden."""
    same = canary == old.canary
    guard = (old.guard if same else None) if terms.guard == "keep" else terms.guard
    resumed = same and old.held and terms.force
    if same and not resumed and (weight, guard) == (old.weight, old.guard):
        return old
    outcome = old.outcome if same and not resumed else None
    since = max(terms.now, old.canary_since + 1)  # a clock may be set back
    return replace(old, canary=canary, weight=weight, guard=guard, canary_since=since, outcome=outcome)


def _without_canary(adapter: Adapter) -> Adapter:
    return replace(adapter, canary=None, weight=0, guard=None, canary_since=0, outcome=None)


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


def _still_callable(reading: ChangeContext, version: Version) -> list[Change]:
    """Expectations that conflict with a concurrent retirement or serving status, neither of which changes the
    adapter's own document."""
    return [reading.unchanged(version), Change("serving_status", version.engine_name, None, expect=None)]


def _delete_version(version: Version, now: int) -> list[Change]:
    """The changes that delete an uncallable version's dependent documents and add its pending deletion."""
    name = version.engine_name
    pending_deletion = PendingDeletion(
        version=version.id, digest=version.digest, path=version.path, since=now
    )
    gone = [Change(kind, name, None) for kind in ("pin", "serving_status")]
    gone += [Change("fingerprint", id_, None) for id_ in fingerprint_ids(name)]
    return [Change("pending_deletion", name, dump(pending_deletion)), *gone]


def _pushed(history: tuple[int, ...], live: int | None) -> tuple[int, ...]:
    return history if live is None else (*history, live)[-HISTORY:]


def _without(adapter: Adapter, number: int) -> tuple[int, ...]:
    """The history without a removed version; adjacent duplicates are merged."""
    history: list[int] = []
    for past in adapter.history:
        if past != number and past != (history[-1] if history else None):
            history.append(past)
    if history and history[-1] == adapter.live:
        history.pop()
    return tuple(history)


def _switch(reading: ChangeContext, old: Adapter, new: Adapter) -> list[Change]:
    return [_change_of(reading, old, new), *_pins(reading, old, new)]


def _change_of(reading: ChangeContext, old: Adapter | None, new: Adapter) -> Change:
    return Change("adapter", new.name, dump(new), expect=None if old is None else reading.expected(old))


def _pins(
    reading: ChangeContext, old: Adapter | None, new: Adapter, added: Version | None = None
) -> list[Change]:
    """Pins follow the versions that the bare name resolves to: live and canary."""
    before = {old.live, old.canary} if old and old.pinned else set()
    after = {new.live, new.canary} if new.pinned else set()
    changes = []
    for number in sorted(n for n in before ^ after if n is not None):
        fresh = added is not None and added.number == number
        version = added if fresh and added else reading.version(new, number)
        data = f'{{"version":"{version.id}"}}' if number in after else None
        changes.append(Change("pin", version.engine_name, data))
    return changes


def _label(number: int | None) -> str | None:
    return None if number is None else f"v{number}"
