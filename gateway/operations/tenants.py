"""Add, change and remove tenants."""

from __future__ import annotations

from dataclasses import replace

from adapters.errors import ConflictError
from adapters.model import check_name
from adapters.registry.transaction import Proposal
from adapters.store.protocol import AuditNote
from gateway.operations.state import State
from gateway.operations.transaction import RegistryReading, change, differences
from gateway.tenants.directory import Tenant, dump


async def put(state: State, name: str, *, base_access: bool | None, actor: str) -> tuple[Tenant, bool]:
    """Add or change a tenant; return it, and whether it is new. `base_access` None keeps the present value,
    false for a new tenant. Raises InvalidNameError."""
    check_name("tenant", name)
    now = state.clock.now()

    def plan(reading: RegistryReading) -> Proposal[tuple[Tenant, bool]]:
        old = reading.directory.tenants.get(name)
        new = old or Tenant(name, base_access=False, created=now)
        if base_access is not None:
            new = replace(new, base_access=base_access)
        if new == old:
            return Proposal([], (new, False))
        note = AuditNote(actor, "tenant.update" if old else "tenant.add", name, details=differences(old, new))
        changes = [reading.change("tenant", name, dump(new), dump(old) if old else None)]
        return Proposal(changes, (new, old is None), note)

    return await change(state, plan)


async def remove(state: State, name: str, *, actor: str) -> None:
    """Remove a tenant and its revoked keys. Idempotent. Raises ConflictError while it has adapters or active
    keys, or while another tenant's adapter is shared with it."""

    def plan(reading: RegistryReading) -> Proposal[None]:
        known = reading.directory.tenants.get(name)
        if known is None:
            return Proposal([], None)
        adapters = reading.catalog.adapters.values()
        left = sorted(a.name for a in adapters if a.name.startswith(f"{name}/") or name in a.shared_with)
        keys = [k for k in reading.directory.keys.values() if k.tenant == name]
        left += [f"key {k.id}" for k in keys if k.revoked is None]
        if left:
            raise ConflictError(f"It cannot go while there is {left[0]}.")
        changes = [
            reading.deletion("tenant", name, dump(known)),
            *(reading.deletion("key", k.id, dump(k)) for k in keys),
        ]
        return Proposal(changes, None, AuditNote(actor, "tenant.remove", name))

    await change(state, plan)
