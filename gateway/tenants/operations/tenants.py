"""Add, change and remove tenants; with a tenant goes what stands in the way, if that is asked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

from adapters.errors import InUseError, NotFoundError
from adapters.model import DEDICATED, AdapterName, check_name
from adapters.placement.requirements import shown
from adapters.registry.catalog import Catalog
from adapters.registry.changes.settings import plan_unshare
from adapters.registry.transaction import Proposal
from adapters.store.protocol.registry import AuditNote, Change
from gateway.costs.credits.store import end_credits
from gateway.costs.manual_lines.store import end_fees
from gateway.costs.selling.card_store import end_assignment
from gateway.costs.statement.final_charges import final_charges
from gateway.errors import FlorinError
from gateway.fleet.adapters.operations import adapters
from gateway.operations.authorization import Authority
from gateway.operations.state import State
from gateway.operations.transaction import RegistryReading, catch_up, change, differences
from gateway.tenants.directory import Tenant, dump
from gateway.tenants.keys import operations as keys
from gateway.tenants.operations.limits import check_money
from gateway.tenants.operations.terms import updated
from gateway.tenants.schemas.tenants import CASCADED, FinalCharges, Obstacle, RequestError
from gateway.tenants.schemas.terms import TenantTerms

_OWN: Final = frozenset({"name", "suspended"})
"""Fields of bodies that `updated` leaves to `_changed`."""
_NAMED: Final = 3
"""Obstacles that an error names."""


async def put(
    state: State,
    name: str,
    terms: TenantTerms,
    *,
    actor: str,
    update: bool = False,
    exact: bool = False,
    new_only: bool = False,
) -> tuple[Tenant, bool]:
    """Add or change a tenant; return it, and whether it is new. Only the fields that `terms` sets change, or,
    with `exact`, all but `suspended`. Raises InvalidNameError; FlorinError for a budget in money that is too
    large, for an unknown organization, and with `new_only` if there is one; with `update`, NotFoundError if
    it is new."""
    check_name("tenant", name)
    now = state.clock.now()

    def plan(reading: RegistryReading) -> Proposal[tuple[Tenant, bool]]:
        old = reading.directory.tenants.get(name)
        if old is None and update:
            raise _not_found(name)
        if old is not None and new_only:
            raise FlorinError("conflict", f"There is a tenant {name!r} already.", param="name")
        bare = Tenant(name, base_access=False, created=old.created if old else now)
        if old is not None and exact:
            bare = replace(bare, suspended=old.suspended)
        new = _changed(bare if old is None or exact else old, terms, now)
        if new == old:
            return Proposal([], (new, False))
        check_money(old, new)
        _check_organization(reading, new)
        note = AuditNote(actor, _action(old, new), name, details=differences(old, new))
        changes = [reading.change("tenant", name, dump(new), dump(old) if old else None)]
        return Proposal(changes, (new, old is None), note)

    return await change(state, plan)


def _check_organization(reading: RegistryReading, tenant: Tenant) -> None:
    """Raises FlorinError."""
    name = tenant.organization
    if not name:
        return
    known = reading.directory.tenants.get(name)
    if known is None or name == tenant.name:
        raise FlorinError("invalid_value", f"There is no other tenant {name!r}.", param="organization")
    if known.organization or len(reading.directory.members(tenant.name)) > 1:
        raise FlorinError(
            "invalid_value", "An organization belongs to no other organization.", param="organization"
        )


def find(state: State, name: str) -> Tenant:
    """Raises NotFoundError."""
    tenant = state.directory.tenants.get(name)
    if tenant is None:
        raise _not_found(name)
    return tenant


async def last_errors(state: State, tenant: Tenant) -> tuple[RequestError, ...]:
    """The last errors of its requests, newest first. Not those of a removed tenant of the same name."""
    errors = map(RequestError.model_validate, await state.lifecycle.activity.last_errors(tenant.name))
    return tuple(error for error in errors if error.failed_at >= tenant.created)


def unmet(catalog: Catalog, tenant: Tenant) -> list[str]:
    """A warning for each fleet of the tenant in which no engine meets its requirements. A tenant without
    adapters has all fleets."""
    if not tenant.requires:  # as of most: looking through all adapters takes milliseconds
        return []
    own = [a for a in catalog.adapters.values() if a.name.startswith(f"{tenant.name}/")]
    live = [catalog.versions.get(f"{a.name}@v{a.live}") for a in own]
    fleets = {v.base_model for v in live if v is not None} or catalog.bases.keys()
    requires = {**tenant.requires, DEDICATED: tenant.name}
    return [
        f"No engine of {base} has {shown(tenant.requires)}: requests of {tenant.name} are refused until one "
        "has"
        for base in sorted(fleets)
        if not any(engine.meets(requires) for engine in catalog.fleet(base))
    ]


async def remove(
    state: State, name: str, *, actor: str, dry_run: bool = False
) -> tuple[bool, list[Obstacle]]:
    """Remove a tenant and its revoked and expired keys. Its usage stays in the ledger, and what it pays every
    month ends with this one. Idempotent. Returns whether it was there, and, of a dry run, what stands in the
    way. Raises InUseError while anything does, and LedgerUnavailableError."""
    now = state.clock.now()

    def plan(reading: RegistryReading) -> Proposal[tuple[Tenant | None, list[Obstacle]]]:
        known = reading.directory.tenants.get(name)
        if known is None:
            return Proposal([], (None, []))
        left = obstacles(reading, name, now)
        if dry_run:
            return Proposal([], (known, left))
        if left:
            raise InUseError(_in_the_way(name, left))
        keys = [k for k in reading.directory.keys.values() if k.tenant == name]
        changes = [
            reading.deletion("tenant", name, dump(known)),
            *(reading.deletion("key", k.id, dump(k)) for k in keys),
            Change("self_service", name, None),
        ]
        return Proposal(changes, (known, []), AuditNote(actor, "tenant.remove", name))

    known, left = await change(state, plan)
    if known is not None and not dry_run:
        await catch_up(state)
        await _check_late(state, known, actor)
    if not dry_run and name not in state.directory.tenants:
        for end in (end_assignment, end_fees, end_credits):
            await asyncio.to_thread(end, state.ledger, name, now=now, actor=actor)
    return known is not None, left


async def charges_to_come(state: State, name: str) -> FinalCharges:
    """What a tenant that is removed now is still charged. Raises LedgerUnavailableError."""
    await state.meter.flush()
    charges = await asyncio.to_thread(final_charges, state.ledger, name, state.clock.now())
    return FinalCharges.model_validate(charges)


async def _check_late(state: State, removed: Tenant, actor: str) -> None:
    """Whoever adds a key or an adapter proves that the tenant is there when the commit happens. So the view,
    which now includes the removal, has all that was added before it, also by other workers. If there is any,
    the tenant comes back. Raises InUseError."""

    def plan(reading: RegistryReading) -> Proposal[list[Obstacle]]:
        late = obstacles(reading, removed.name, state.clock.now())
        gone = removed.name not in reading.directory.tenants
        back = [Change("tenant", removed.name, dump(removed), expect=None)] if late and gone else []
        return Proposal(back, late, AuditNote(actor, "tenant.add", removed.name))

    late = await change(state, plan)
    if late:
        raise InUseError(_in_the_way(removed.name, late))


def obstacles(reading: RegistryReading, name: str, now: int) -> list[Obstacle]:
    """What keeps a tenant from being removed: its adapters, adapters shared with it, engines set
    aside for it, its members, and valid keys. Pure."""
    adapters = sorted(reading.catalog.adapters.values(), key=lambda a: a.name)
    own = [a.name for a in adapters if a.name.startswith(f"{name}/")]
    shared = [a.name for a in adapters if name in a.shared_with]
    keys = [k for k in reading.directory.keys.values() if k.tenant == name and k.valid(now)]
    engines = sorted(e.name for e in reading.catalog.engines.values() if e.tenant == name)
    members = sorted(t.name for t in reading.directory.members(name) if t.name != name)
    unshare = f"take {name} out of shared_with of {{}} (florin apply)"
    return [
        *(Obstacle(kind="adapter", id=a, command=f"florin adapter remove {a}") for a in own),
        *(Obstacle(kind="share", id=a, command=unshare.format(a)) for a in shared),
        *(Obstacle(kind="engine", id=e, command=f"florin engine remove {e}") for e in engines),
        *(
            Obstacle(kind="member", id=m, command=f"florin tenant update {m} --organization none")
            for m in members
        ),
        *(
            Obstacle(kind="key", id=k.id, command=f"florin key revoke {k.id}")
            for k in sorted(keys, key=lambda k: k.created)
        ),
    ]


def _changed(old: Tenant, terms: TenantTerms, now: int) -> Tenant:
    new = updated(old, terms, leave=_OWN)
    if terms.suspended is None:
        return new
    return replace(new, suspended=(old.suspended or now) if terms.suspended else None)


def _action(old: Tenant | None, new: Tenant) -> str:
    if old is None:
        return "tenant.add"
    if (old.suspended is None) == (new.suspended is None):
        return "tenant.update"
    return "tenant.resume" if new.suspended is None else "tenant.suspend"


def _in_the_way(name: str, left: list[Obstacle]) -> str:
    words = {
        "adapter": "adapter {}",
        "engine": "engine {}, which is dedicated to it",
        "share": "adapter {}, which is shared with it",
        "key": "key {}",
        "member": "its member {}",
    }
    named = [words[o.kind].format(o.id) for o in left[:_NAMED]]
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return (
        f"{name} cannot be removed while there is {', '.join(named)}{more}: first run `{left[0].command}`"
        f"{', and so on' if len(left) > 1 else ''}. `florin tenant remove {name} --dry-run` lists "
        "everything, and `--cascade` removes its keys, adapters and shares, too."
    )


def _not_found(name: str) -> NotFoundError:
    return NotFoundError(f"There is no tenant {name[:80]!r}.")


async def remove_all(state: State, name: str, *, actor: str) -> tuple[bool, list[Obstacle]]:
    """Remove a tenant, and before it its keys, its adapters, and the sharing of others' adapters with it.
    Returns whether it was there, and what was removed with it. Each step is a commit of its own: if it ends
    in the middle, the tenant is still there, and doing it again completes it. Raises InUseError, before the
    first step if the tenant has members or engines, or at the end if something was added meanwhile."""
    there, obstacles = await remove(state, name, actor=actor, dry_run=True)
    if stays := [obstacle for obstacle in obstacles if not obstacle.cascades]:
        raise InUseError(_in_the_way(name, stays))
    ordered = sorted(obstacles, key=lambda obstacle: CASCADED.index(obstacle.kind))
    for obstacle in ordered:
        await _clear(state, name, obstacle, Authority(actor))
    await catch_up(state)
    if there:
        await remove(state, name, actor=actor)
    return there, ordered


async def _clear(state: State, tenant: str, obstacle: Obstacle, authority: Authority) -> None:
    """An object that is already gone is not an error."""
    try:
        if obstacle.kind == "key":
            await keys.revoke(state, obstacle.id, authority=authority)
            return
        name = AdapterName.parse(obstacle.id)
        if obstacle.kind == "adapter":
            await adapters.remove(state, name, authority=authority)
        else:
            plan = partial(plan_unshare, name=name, tenant=tenant)
            await state.registrar.change(name, authority.actor, plan)
    except NotFoundError:
        return
