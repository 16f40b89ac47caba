"""Bringing an adapter to what a document says: its versions first, then what callers of its name get.

One that is not there appears whole, in one commit, or not at all. Of one that is there, versions are added
first and change nothing for callers; then what becomes live is made resident; then the switch is one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from adapters.errors import ConflictError, RejectedError
from adapters.model import Adapter, AdapterName, Guard, Version, dump
from adapters.registry.change_context import ChangeContext
from adapters.registry.changes.live_version import check_hold
from adapters.registry.changes.planned_change import PlannedChange
from adapters.registry.changes.versions import check_one_base
from adapters.store.protocol.registry import Change
from gateway.declarative.operations import resolve
from gateway.declarative.operations.current import adapter_spec
from gateway.declarative.operations.resolve import DocumentRefusedError
from gateway.declarative.operations.specs import AdapterSpec, VersionSpec, uploaded
from gateway.evaluations import operations as evaluations
from gateway.operations.state import State
from gateway.operations.transaction import catch_up

Report = Callable[[str, int, int | None], None]


async def bring(state: State, name: AdapterName, spec: AdapterSpec, *, actor: str, report: Report) -> None:
    """Raises AdaptersError, FlorinError, OSError (the artifact disk). Done again, it goes on where it was."""
    new = str(name) not in state.catalog.adapters
    fresh = {v.number: await _prepare(state, name, v, report) for v in _missing(state, name, spec)}
    await _commit(state, name, spec, fresh, switch=new, actor=actor)
    if not new:
        await _warm(state, name, spec, report)
        await _commit(state, name, spec, fresh, switch=True, actor=actor)


async def _prepare(state: State, name: AdapterName, spec: VersionSpec, report: Report) -> Version:
    id_ = f"{name}@{spec.version}"

    def progress(step: str, done: int, total: int | None) -> None:
        report(f"{id_}: {step}", done, total)

    try:
        return await state.registrar.prepare(
            name,
            spec.source,
            base_model=spec.base_model,
            # Whoever has the digest has it from a registration, which has asked for the base model's name.
            assume_base=spec.digest is not None,
            unverified_shapes=spec.unverified_shapes,
            digest=spec.digest,
            progress=progress,
        )
    except RejectedError as error:
        if not (uploaded(spec.source) and error.findings[0].code == "source_unsupported"):
            raise
        files = (spec.digest or "").removeprefix("sha256:")
        copy = f"copy {files} from the FLORIN_ARTIFACT_DIR of before to {state.artifacts.where}, or put "
        raise DocumentRefusedError(
            f"The files of {id_} were uploaded, and are not in the artifact store: "
            f"{copy if files else 'put '}them where the gateway can fetch them, and name that as its "
            "source. Then apply again."
        ) from error


def _missing(state: State, name: AdapterName, spec: AdapterSpec) -> list[VersionSpec]:
    known = state.catalog.versions
    return [
        v
        for v in sorted(spec.versions, key=lambda v: v.number)
        if (there := known.get(f"{name}@{v.version}")) is None or there.retired is not None
    ]


async def _warm(state: State, name: AdapterName, spec: AdapterSpec, report: Report) -> None:
    """Like `promote`, it refuses a version that no engine can hold."""
    adapter = state.catalog.adapters.get(str(name))
    if adapter is None or spec.live is None:
        return
    live = state.catalog.versions.get(f"{name}@v{adapter.live}")
    shares = {int(spec.live[1:]): 100}
    if spec.canary is not None:
        shares[int(spec.canary.version[1:])] = spec.canary.weight
    for number, share in shares.items():
        if number not in (adapter.live, adapter.canary):
            await evaluations.check_promotion(state, name, number)
            report(f"{name}@v{number}: load", 0, None)
            await state.prewarmer.warm(state.registrar.loadable_version(name, number), like=live, share=share)


async def _commit(
    state: State,
    name: AdapterName,
    spec: AdapterSpec,
    fresh: Mapping[int, Version],
    *,
    switch: bool,
    actor: str,
) -> None:
    """`switch`: with what callers of the bare name get."""
    await state.registrar.change(
        name,
        actor,
        lambda reading: planned(reading, name, spec, fresh, switch=switch, now=state.clock.now()),
    )
    await catch_up(state)


def planned(
    reading: ChangeContext,
    name: AdapterName,
    spec: AdapterSpec,
    fresh: Mapping[int, Version],
    *,
    switch: bool,
    now: int = 0,
) -> PlannedChange[Adapter]:
    """Pure. `fresh`: prepared versions by the number that each is to have. `now`: Unix microseconds. Raises
    DocumentRefusedError, CanaryHeldError, and what `ChangeContext.callable_version` raises."""
    old = reading.catalog.adapters.get(str(name))
    there = None if old is None else adapter_spec(old, _callable(reading, old))
    goal = resolve.adapter(
        str(name),
        there,
        spec,
        retired=_retired(reading, name),
        buried=_buried(reading, name),
        outcome=old.outcome if old else None,
    )
    versions, changes = _versions(reading, name, goal, fresh)
    before = old or Adapter(str(name), live=None)
    new = replace(
        before,
        history=_numbers(goal.history) if switch else before.history,
        latest=_number(goal.latest) or 0,
        pinned=goal.pinned,
        min_replicas=goal.min_replicas,
        max_replicas=goal.max_replicas,
        shared_with=goal.shared_with,
        cost_centre=goal.cost_centre,
        require_eval=goal.require_eval,
        eval_data=goal.eval_data,
    )
    if switch:
        new = _switched(before, new, goal, now)
        changes += [
            reading.unchanged(reading.callable_version(new, number))
            for number in (new.live, new.canary)
            if number not in (before.live, before.canary, None) and old is not None
        ]
    if old == new and not changes:
        return PlannedChange([], new)
    changes += [
        *_there(reading, name.tenant, *new.shared_with),
        Change("adapter", str(name), dump(new), expect=None if old is None else reading.expected(old)),
        *_pins(versions, before, new),
    ]
    if old is None:
        tombstone = reading.catalog.tombstones.get(str(name))
        stands = None if tombstone is None else reading.text("tombstone", str(name), tombstone)
        changes.append(Change("tombstone", str(name), None, expect=stands))
    added = {n: v for n, v in fresh.items() if not _registered(reading, versions[n])}
    return PlannedChange(changes, new, "adapter.apply", details=_details(before, new, added))


def _switched(before: Adapter, new: Adapter, goal: AdapterSpec, now: int) -> Adapter:
    """With what callers of the bare name get. A change of it begins another comparison of the canary with the
    live version, and ends a hold."""
    live, canary = _number(goal.live), goal.canary
    number, weight = (_number(canary.version), canary.weight) if canary else (None, 0)
    guard = canary.guard.guard() if canary and canary.guard else None
    split = (live, number, weight, guard)
    if split == (before.live, before.canary, before.weight, before.guard):
        return new
    raised = 100 if live == before.canary else weight if number == before.canary else 0
    check_hold(before, raised)
    since = max(now, before.canary_since + 1) if canary else 0
    return replace(
        new, live=live, canary=number, weight=weight, guard=guard, canary_since=since, outcome=None
    )


def _versions(
    reading: ChangeContext, name: AdapterName, goal: AdapterSpec, fresh: Mapping[int, Version]
) -> tuple[dict[int, Version], list[Change]]:
    """All versions as they will be, by number, and what changes of them."""
    versions: dict[int, Version] = {}
    changes: list[Change] = []
    for spec in goal.versions:
        id_ = f"{name}@{spec.version}"
        there = reading.catalog.versions.get(id_)
        if there is not None and there.retired is None:
            new = replace(there, source=spec.source, trusted=bool(spec.trusted))
        elif spec.number in fresh:
            new = replace(fresh[spec.number], number=spec.number, trusted=bool(spec.trusted))
        else:
            raise ConflictError(f"{id_} was removed meanwhile; apply the file again.")
        for other in versions.values():
            if (other.digest, other.base_model) == (new.digest, new.base_model):
                raise DocumentRefusedError(
                    f"{spec.version} has the files of v{other.number}: one content, one number."
                )
        if new is not there and spec.number in fresh:
            check_one_base(versions.values(), new)
        versions[spec.number] = new
        if new != there:
            expect = None if there is None else reading.text("version", id_, there)
            changes.append(Change("version", id_, dump(new), expect=expect))
    return versions, changes


def _registered(reading: ChangeContext, version: Version) -> bool:
    there = reading.catalog.versions.get(version.id)
    return there is not None and there.retired is None


def _callable(reading: ChangeContext, adapter: Adapter) -> list[Version]:
    return [v for v in reading.versions(adapter) if v.retired is None]


def _retired(reading: ChangeContext, name: AdapterName) -> dict[str, str]:
    adapter = reading.catalog.adapters.get(str(name))
    versions = reading.versions(adapter) if adapter else []
    return {v.id: v.digest for v in versions if v.retired is not None}


def _buried(reading: ChangeContext, name: AdapterName) -> int:
    tombstone = reading.catalog.tombstones.get(str(name))
    return tombstone.latest if tombstone else 0


def _there(reading: ChangeContext, *tenants: str) -> list[Change]:
    """Proof, when the commit happens, that they are."""
    texts = {tenant: reading.tenant(tenant) for tenant in tenants}
    return [Change("tenant", tenant, text, expect=text) for tenant, text in texts.items()]


def _pins(versions: Mapping[int, Version], old: Adapter, new: Adapter) -> list[Change]:
    before = {old.live, old.canary} if old.pinned else set()
    after = {new.live, new.canary} if new.pinned else set()
    changes = []
    for number in sorted(n for n in before ^ after if n is not None and n in versions):
        version = versions[number]
        data = f'{{"version":"{version.id}"}}' if number in after else None
        changes.append(Change("pin", version.engine_name, data))
    return changes


def _details(old: Adapter, new: Adapter, added: Mapping[int, Version]) -> dict[str, Any]:
    details: dict[str, Any] = {f"v{n}": v.digest for n, v in sorted(added.items())}
    if unverified := [f"v{n}" for n, v in sorted(added.items()) if v.unverified_shapes]:
        details["unverified_shapes"] = unverified
    for field in (
        "live",
        "canary",
        "weight",
        "guard",
        "pinned",
        "min_replicas",
        "max_replicas",
        "shared_with",
        "cost_centre",
        "require_eval",
        "eval_data",
    ):
        if getattr(old, field) != getattr(new, field):
            details[field] = {"old": _plain(getattr(old, field)), "new": _plain(getattr(new, field))}
    return details


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, Guard) else value


def _number(label: str | None) -> int | None:
    return None if label is None else int(label[1:])


def _numbers(labels: tuple[str, ...] | None) -> tuple[int, ...]:
    return tuple(int(label[1:]) for label in labels or ())
