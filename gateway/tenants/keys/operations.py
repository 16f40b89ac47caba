"""Create, change, rotate and revoke API keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from adapters.errors import ConflictError, NotFoundError
from adapters.model import check_name
from adapters.model import dump as dump_engine
from adapters.registry.transaction import Proposal
from adapters.store.protocol.registry import AuditNote, Change
from gateway.errors import FlorinError
from gateway.fleet.adapters.operations import quotas
from gateway.operations.authorization import Authority, actor_of
from gateway.operations.state import State
from gateway.operations.transaction import RegistryReading, change, differences
from gateway.tenants import delegation
from gateway.tenants.directory import Directory, Key, Pins, Role, dump, mint
from gateway.tenants.keys.schemas import KeyFields, NewKey, Rotation
from gateway.tenants.operations.limits import check_money
from gateway.tenants.operations.terms import check_owner, check_terms, expiry, seconds, updated

MAX_OVERLAP_SECONDS: Final = 30 * 86_400
_OWN: Final = frozenset({"tenant", "role", "engine", "address", "expires"})
"""Fields of bodies that are not terms."""


async def create(state: State, new: NewKey, *, authority: Authority) -> tuple[Key, str]:
    """Return the key and its text, which is not stored. Raises FlorinError, NotFoundError, InvalidNameError,
    QuotaExceededError."""
    role, tenant = Role(new.role), new.tenant or authority.tenant or ""
    authority.check_tenant(tenant)
    with _checked_fields():
        check_owner(role, tenant, new.engine, address=new.address)
        check_terms(role, new)
    if new.engine:
        check_name("engine", new.engine)
    now = state.clock.now()
    until = None if new.expires is None else expiry("expires", new.expires, now)
    until = authority.lifetime(until, given=new.expires is not None)
    pins = Pins(address=new.address)
    bare, text = mint(tenant, role, now, engine=new.engine, pins=pins, expires=until)
    key = updated(bare, new, leave=_OWN)
    if authority.key is not None:
        key = delegation.created(authority.key, key)
    elif role is Role.OPERATOR and tenant:
        raise FlorinError("invalid_value", "A key of role operator belongs to no tenant.", param="tenant")
    check_money(None, key)

    def plan(reading: RegistryReading) -> Proposal[None]:
        changes = [Change("key", key.id, dump(key), expect=None), *tenant_proof(reading, tenant)]
        if authority.tenant is not None:
            changes.append(quotas.admit_key(state, reading, authority.tenant, now))
        note = AuditNote(authority.actor, "key.create", key.id, details=details(key))
        return Proposal(changes, None, note)

    await change(state, plan)
    return key, text


async def update(state: State, key_id: str, body: KeyFields, *, authority: Authority) -> Key:
    """Change the fields that `body` sets. Raises FlorinError, NotFoundError, QuotaExceededError (for an
    expired key), ConflictError for a revoked key."""
    now = state.clock.now()
    until = None if body.expires is None else expiry("expires", body.expires, now)

    def plan(reading: RegistryReading) -> Proposal[Key]:
        old = _valid(reading, key_id, authority, "changed")
        with _checked_fields():
            check_terms(old.role, body)
        new = updated(old, body, leave=_OWN)
        if "expires" in body.model_fields_set:
            new = replace(new, expires=authority.lifetime(until, given=True))
        if authority.key is not None:
            new = delegation.changed(authority.key, old, new)
        if new == old:
            return Proposal([], old)
        check_money(old, new)
        note = AuditNote(authority.actor, "key.update", key_id, details=differences(old, new))
        changes = [reading.change("key", key_id, dump(new), dump(old))]
        if authority.tenant is not None and new.valid(now) and not old.valid(now):
            changes.append(quotas.admit_key(state, reading, authority.tenant, now))
        return Proposal(changes, new, note)

    return await change(state, plan)


async def rotate(
    state: State, key_id: str, rotation: Rotation, *, authority: Authority
) -> tuple[Key, str, Key]:
    """Replace a key: a new one, its text, and the old one, which expires once the overlap is over, or earlier
    if it would have anyway. The new key has the same owner, role and terms.

    A key is replaced once: of two rotations at a time, one is refused. Raises FlorinError, NotFoundError,
    QuotaExceededError, ConflictError."""
    wait = seconds("overlap", rotation.overlap)
    if wait > MAX_OVERLAP_SECONDS:
        raise FlorinError("invalid_value", "overlap: at most 30d.", param="overlap")
    now = state.clock.now()
    until = None if rotation.expires is None else expiry("expires", rotation.expires, now)
    seed, text = mint("", Role.TENANT, now)

    def plan(reading: RegistryReading) -> Proposal[tuple[Key, str, Key]]:
        old = _valid(reading, key_id, authority, "rotated")
        _check_rotation(reading, old, now)
        if authority.key is not None:
            delegation.check_within(authority.key, old, "rotate")
        end = now + wait * 1_000_000
        lifetime = until or (None if old.expires is None else now + old.expires - old.created)
        lifetime = authority.lifetime(lifetime, given=until is not None)
        new = replace(old, id=seed.id, digest=seed.digest, created=now, expires=lifetime)
        ending = replace(
            old, expires=end if old.expires is None else min(end, old.expires), replaced_by=new.id
        )
        note_details = {"new": new.id, "overlap": rotation.overlap, **details(new)}
        note = AuditNote(authority.actor, "key.rotate", key_id, details=note_details)
        changes = [
            reading.change("key", key_id, dump(ending), dump(old)),
            Change("key", new.id, dump(new), expect=None),
        ]
        if authority.tenant is not None:
            changes.append(quotas.admit_rotation(state, reading, authority.tenant, now))
        return Proposal(changes, (new, text, ending), note)

    return await change(state, plan)


async def revoke(state: State, key_id: str, *, authority: Authority) -> Key:
    """Revoke a key and drain the engine that was registered with it. Idempotent. Raises NotFoundError."""
    now = state.clock.now()

    def plan(reading: RegistryReading) -> Proposal[Key]:
        old = _own(reading.directory, key_id, authority)
        if old.revoked is not None:
            return Proposal([], old)
        new = replace(old, revoked=now)
        changes = [reading.change("key", key_id, dump(new), dump(old)), *drain_engine_of(reading, old)]
        note = AuditNote(authority.actor, "key.revoke", key_id, details=details(new))
        return Proposal(changes, new, note)

    return await change(state, plan)


async def sign_in_link(state: State, key: Key) -> tuple[str, int]:
    """The secret of a link that signs in to the console once as `key`, and when it expires, Unix
    microseconds. Raises FlorinError, StoreUnavailableError."""
    secret, expires = await state.sessions.link(key)
    await state.store.commit((), audit=AuditNote(actor_of(key), "key.sign_in_link", key.id))
    return secret, expires


def visible(state: State, authority: Authority) -> list[Key]:
    """The keys that the caller may see, by tenant and age."""
    keys = (key for key in state.directory.keys.values() if authority.sees_key(key))
    return sorted(keys, key=lambda k: (k.tenant, k.created))


def find(state: State, key_id: str, authority: Authority) -> Key:
    """Raises NotFoundError."""
    return _own(state.directory, key_id, authority)


def details(key: Key) -> dict[str, object]:
    """What an audit note says of a key."""
    facts = {
        "tenant": key.tenant,
        "role": key.role,
        "engine": key.engine,
        "label": key.label,
        "address": key.pins.address,
    }
    return {name: value for name, value in facts.items() if value or name in {"tenant", "role"}}


def tenant_proof(reading: RegistryReading, tenant: str) -> list[Change]:
    """Require that the tenant exists at the time of the commit. Raises NotFoundError."""
    if not tenant:
        return []
    known = reading.directory.tenants.get(tenant)
    if known is None:
        raise NotFoundError(f"There is no tenant {tenant[:80]!r}: add it first.")
    return [reading.proof("tenant", tenant, dump(known))]


def drain_engine_of(reading: RegistryReading, revoked: Key) -> list[Change]:
    """The changes that drain the engine registered with this key, to be committed with its revocation: the
    host may be compromised, so it must not receive prompts any more."""
    engine = reading.catalog.engines.get(revoked.engine) if revoked.role is Role.ENGINE else None
    if engine is None or engine.key != revoked.id:
        return []
    drained = replace(engine, state="draining", drain=None)
    if drained == engine:
        return []
    return [reading.change("engine", engine.name, dump_engine(drained), dump_engine(engine))]


def check_engine(engine: str) -> None:
    """Raises FlorinError, InvalidNameError."""
    if not engine:
        raise FlorinError("invalid_value", "A key of role engine needs an engine.", param="engine")
    check_name("engine", engine)


@contextmanager
def _checked_fields() -> Iterator[None]:
    """Raises FlorinError for a ValueError that begins with a field's name."""
    try:
        yield
    except ValueError as error:
        raise FlorinError("invalid_value", f"{error}.", param=str(error).partition(":")[0]) from error


def _check_rotation(reading: RegistryReading, old: Key, now: int) -> None:
    if old.role is Role.ENGINE:
        raise FlorinError(
            "invalid_value",
            f"The key of an engine's host is replaced by enrolling it again: `florin engine token create "
            f"--name {old.engine}`.",
        )
    if not old.valid(now):
        raise ConflictError(f"Key {old.id} has expired: create a new one with `florin key create`.")
    successor = reading.directory.keys.get(old.replaced_by)
    if successor is not None and successor.valid(now):
        raise ConflictError(
            f"Key {old.id} was rotated: key {successor.id} replaces it. If that key was lost, run "
            f"`florin key revoke {successor.id}`, then rotate again."
        )


def _valid(reading: RegistryReading, key_id: str, authority: Authority, done: str) -> Key:
    key = _own(reading.directory, key_id, authority)
    if key.role is Role.ENROLMENT:
        raise FlorinError("invalid_value", f"{key_id} is an enrolment token, and cannot be {done}.")
    if key.revoked is not None:
        raise ConflictError(f"Key {key_id} is revoked, and cannot be {done}: create a new one.")
    return key


def _own(directory: Directory, key_id: str, authority: Authority) -> Key:
    key = directory.keys.get(key_id)
    if key is None or not authority.sees_key(key):
        raise NotFoundError(f"There is no key {key_id[:80]!r}.")
    return key
