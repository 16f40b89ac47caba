"""Create and revoke API keys."""

from __future__ import annotations

from dataclasses import replace

from adapters.errors import NotFoundError
from adapters.model import check_name
from adapters.model import dump as dump_engine
from adapters.registry.transaction import Proposal
from adapters.store.protocol import AuditNote, Change
from gateway.errors import FlorinError
from gateway.operations.state import State
from gateway.operations.transaction import RegistryReading, change
from gateway.tenants.directory import Key, Role, dump, mint


async def create(state: State, *, tenant: str, role: Role, engine: str, actor: str) -> tuple[Key, str]:
    """Return the key and its text, which is not stored. Raises FlorinError, NotFoundError,
    InvalidNameError."""
    _check_owner(tenant, role, engine)
    if tenant and tenant not in state.directory.tenants:
        raise NotFoundError(f"There is no tenant {tenant[:80]!r}: add it first.")
    key, text = mint(tenant, role, state.clock.now(), engine=engine)
    await change(
        state,
        lambda _: Proposal(
            [Change("key", key.id, dump(key), expect=None)], None, _note(actor, "key.create", key)
        ),
    )
    return key, text


async def revoke(state: State, key_id: str, *, actor: str) -> Key:
    """Revoke a key and drain the engine that was registered with it. Idempotent. Raises NotFoundError."""
    now = state.clock.now()

    def plan(reading: RegistryReading) -> Proposal[Key]:
        old = reading.directory.keys.get(key_id)
        if old is None:
            raise NotFoundError(f"There is no key {key_id[:80]!r}.")
        if old.revoked is not None:
            return Proposal([], old)
        new = replace(old, revoked=now)
        changes = [reading.change("key", key_id, dump(new), dump(old)), *drain_engine_of(reading, old)]
        return Proposal(changes, new, _note(actor, "key.revoke", new))

    return await change(state, plan)


def drain_engine_of(reading: RegistryReading, revoked: Key) -> list[Change]:
    """The changes that drain the engine registered with this key, to be committed with its revocation: the
    host may be compromised, so it must not receive prompts any more."""
    engine = reading.catalog.engines.get(revoked.engine) if revoked.role is Role.ENGINE else None
    if engine is None or engine.key != revoked.id or engine.state == "draining":
        return []
    drained = replace(engine, state="draining")
    return [reading.change("engine", engine.name, dump_engine(drained), dump_engine(engine))]


def check_engine(engine: str) -> None:
    """Raises FlorinError, InvalidNameError."""
    if not engine:
        raise FlorinError("invalid_value", "A key of role engine needs an engine.", param="engine")
    check_name("engine", engine)


def _check_owner(tenant: str, role: Role, engine: str) -> None:
    if role is Role.ENROLMENT:
        raise FlorinError(
            "invalid_value", "Enrolment tokens are made by `florin engine token create`.", param="role"
        )
    if role is Role.TENANT and not tenant:
        raise FlorinError("invalid_value", "A key of role tenant needs a tenant.", param="tenant")
    if role is Role.ENGINE:
        check_engine(engine)
    elif engine:
        raise FlorinError("invalid_value", "Only keys of role engine are for an engine.", param="engine")
    if tenant and role in {Role.ENGINE, Role.METRICS}:
        raise FlorinError("invalid_value", f"A key of role {role} is no tenant's.", param="tenant")


def _note(actor: str, action: str, key: Key) -> AuditNote:
    details = {"tenant": key.tenant, "role": key.role}
    return AuditNote(actor, action, key.id, details=details | ({"engine": key.engine} if key.engine else {}))
