"""Removes a tenant together with what stands in the way: its keys, its adapters, and that other tenants'
adapters are shared with it."""

from __future__ import annotations

from functools import partial

from adapters.errors import NotFoundError
from adapters.model import AdapterName
from adapters.registry.changes.settings import plan_unshare
from gateway.fleet.adapters.operations import adapters
from gateway.operations.authorization import Authority
from gateway.operations.state import State
from gateway.operations.transaction import catch_up
from gateway.tenants.keys import operations as keys
from gateway.tenants.operations import tenants
from gateway.tenants.schemas.tenants import Obstacle

_ORDER = ("key", "share", "adapter")
"""Keys first: then nothing is called or added any more."""


async def remove(state: State, name: str, *, actor: str) -> tuple[bool, list[Obstacle]]:
    """Returns whether the tenant was there, and what was removed before it. Each step is a commit of its own:
    if it ends in the middle, the tenant is still there, and doing it again completes it. Raises InUseError if
    something was added meanwhile."""
    there, obstacles = await tenants.remove(state, name, actor=actor, dry_run=True)
    ordered = sorted(obstacles, key=lambda obstacle: _ORDER.index(obstacle.kind))
    for obstacle in ordered:
        await _clear(state, name, obstacle, Authority(actor))
    await catch_up(state)
    if there:
        await tenants.remove(state, name, actor=actor)
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
