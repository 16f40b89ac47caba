"""Carry out one action of a plan, with the operations that routes call wherever there is one.

Each function looks at the registry anew, so that what has changed since the plan was made is not undone by
mistake, and is one commit with its note in the audit.
"""

from __future__ import annotations

from dataclasses import replace

from adapters.errors import EngineUnreachableError
from adapters.model import AdapterName, BaseModel, Tombstone, dump
from adapters.registry.transaction import Proposal
from adapters.store.protocol.registry import AuditNote, Change
from gateway.costs.prices import operations as prices
from gateway.costs.prices.schemas import NewPrice
from gateway.costs.selling import operations as rate_cards
from gateway.costs.selling.schemas import NewAssignment, NewRateCard
from gateway.declarative.operations import resolve, splits
from gateway.declarative.operations.actions import PlannedAction
from gateway.declarative.operations.current import base_spec, engine_spec, key_spec
from gateway.declarative.operations.document import Document
from gateway.declarative.operations.resolve import DocumentRefusedError
from gateway.declarative.operations.specs import (
    AdapterSpec,
    BaseSpec,
    EngineSpec,
    KeySpec,
    RemovedSpec,
    TenantSpec,
)
from gateway.fleet.adapters.operations import adapters
from gateway.fleet.engines.operations import engines
from gateway.fleet.engines.operations.registration import register
from gateway.fleet.engines.schemas.registration import NewEngine
from gateway.operations.authorization import Authority
from gateway.operations.state import State
from gateway.operations.transaction import RegistryReading, change, differences
from gateway.tenants import directory
from gateway.tenants.directory import Key, Role
from gateway.tenants.keys import operations as keys
from gateway.tenants.operations import tenants


async def act(
    state: State, action: PlannedAction, document: Document, *, actor: str, report: splits.Report
) -> None:
    """Raises AdaptersError, FlorinError, LedgerUnavailableError, OSError (the artifact disk)."""
    id_ = action.id
    if action.verb == "remove":
        await _remove(state, action, actor)
        return
    match action.goal:
        case BaseSpec():
            await _base(state, id_, (document.bases or {})[id_], actor)
        case EngineSpec():
            await _engine(state, id_, action.goal, document, actor)
        case TenantSpec():
            await tenants.put(state, id_, (document.tenants or {})[id_], actor=actor, exact=True)
        case KeySpec():
            await _key(state, id_, (document.keys or {})[id_], actor)
        case AdapterSpec():
            name = AdapterName.parse(id_)
            await splits.bring(state, name, (document.adapters or {})[id_], actor=actor, report=report)
        case NewPrice():
            await prices.add(state, action.goal, actor=actor)
        case NewRateCard():
            await rate_cards.add(state, action.goal, actor=actor)
        case NewAssignment():
            await rate_cards.assign(state, action.goal, actor=actor)
        case RemovedSpec():
            await _count(state, id_, int(action.goal.latest[1:]), actor)
        case _:
            raise AssertionError(action)


async def _remove(state: State, action: PlannedAction, actor: str) -> None:
    id_ = action.id
    if action.kind == "adapter":
        name = AdapterName.parse(id_)
        if isinstance(action.goal, AdapterSpec):  # some of its versions
            for version in action.goal.versions:
                await adapters.retire(state, name, version.number, authority=Authority(actor))
        else:
            await adapters.remove(state, name, authority=Authority(actor))
    elif action.kind == "key":
        await keys.revoke(state, id_, authority=Authority(actor))
    elif action.kind == "tenant":
        await tenants.remove(state, id_, actor=actor)
    elif action.kind == "engine":
        await engines.remove(state, id_, actor=actor)
    elif action.kind == "base":
        await _remove_base(state, id_, actor)


async def _base(state: State, name: str, spec: BaseSpec, actor: str) -> None:
    def plan(reading: RegistryReading) -> Proposal[None]:
        old = reading.catalog.bases.get(name)
        goal = resolve.base(name, base_spec(old) if old else None, spec)
        new = BaseModel(name, goal.aliases or (), goal.config, goal.chat_template)
        if old is not None and replace(old, aliases=tuple(sorted(old.aliases))) == new:
            return Proposal([], None)
        details = differences(old, new)
        if "config" in details:
            details["config"] = "changed"  # hundreds of lines
        note = AuditNote(actor, "base.update" if old else "base.add", name, details=details)
        return Proposal([reading.change("base", name, dump(new), dump(old) if old else None)], None, note)

    await change(state, plan)


async def _engine(state: State, name: str, goal: EngineSpec, document: Document, actor: str) -> None:
    """An engine that answers must be what the file says. One that does not is believed to be: a fleet may be
    restored before all of it runs."""
    there = state.catalog.engines.get(name)
    facts = goal.model_dump(exclude={"state"})
    if there is None or engine_spec(there).model_dump(exclude={"state"}) != facts:
        body = NewEngine(name=name, **facts)
        try:
            await register(state, body, actor=actor)
        except EngineUnreachableError:
            await register(state, body.model_copy(update={"verify": False}), actor=actor)
    if goal.state is not None and state.catalog.engines[name].state != goal.state:
        await engines.set_state(state, name, goal.state, actor=actor)
    base = (document.bases or {}).get(goal.base)
    if base is not None:  # what the engine says of its model does not go over what the file says
        await _base(state, goal.base, base, actor)


async def _key(state: State, key_id: str, spec: KeySpec, actor: str) -> None:
    now = state.clock.now()

    def plan(reading: RegistryReading) -> Proposal[None]:
        old = reading.directory.keys.get(key_id)
        new = _new_key(reading, key_id, old, spec, now)
        if new == old:
            return Proposal([], None)
        changes = [reading.change("key", key_id, directory.dump(new), directory.dump(old) if old else None)]
        changes += keys.tenant_proof(reading, new.tenant)
        if old is not None and old.revoked is None and new.revoked is not None:
            changes += keys.drain_engine_of(reading, old)
        details = keys.details(new)
        if old is not None:
            same = replace(new, digest=old.digest)
            details |= differences(old, same) | ({} if same == new else {"changed": "secret"})
        note = AuditNote(actor, "key.update" if old else "key.create", key_id, details=details)
        return Proposal(changes, None, note)

    await change(state, plan)


def _new_key(reading: RegistryReading, key_id: str, old: Key | None, spec: KeySpec, now: int) -> Key:
    """A revoked key stays revoked, with its original time."""
    if old is not None and old.role is Role.ENROLMENT:
        raise DocumentRefusedError("This is the id of an enrolment token: give the key another.")
    goal = resolve.key(key_spec(old) if old else None, spec)
    new = resolve.new_key(key_id, goal, created=old.created if old else now)
    for other in reading.directory.keys.values():
        if other.digest == new.digest and other.id != key_id:
            raise DocumentRefusedError(f"Key {other.id} has the same secret: each key needs its own.")
    return new if old is None or old.revoked is None else replace(new, revoked=old.revoked)


async def _count(state: State, name: str, latest: int, actor: str) -> None:
    """Remember the highest number of a removed adapter, which is not there."""
    now = state.clock.now()

    def plan(reading: RegistryReading) -> Proposal[None]:
        old = reading.catalog.tombstones.get(name)
        if name in reading.catalog.adapters or (old and old.latest >= latest):
            return Proposal([], None)
        new = Tombstone(latest, old.removed if old else now)
        changes = [
            reading.change("tombstone", name, dump(new), dump(old) if old else None),
            Change("adapter", name, None, expect=None),
        ]
        return Proposal(changes, None, AuditNote(actor, "adapter.count", name, f"v{latest}"))

    await change(state, plan)


async def _remove_base(state: State, name: str, actor: str) -> None:
    def plan(reading: RegistryReading) -> Proposal[None]:
        known = reading.catalog.bases.get(name)
        users = [e.name for e in reading.catalog.fleet(name)]
        users += [v.id for v in reading.catalog.versions.values() if v.base_model == name and not v.retired]
        if users:
            raise DocumentRefusedError(f"{min(users)} needs it.")
        changes = [reading.deletion("base", name, dump(known))] if known else []
        return Proposal(changes, None, AuditNote(actor, "base.remove", name))

    await change(state, plan)
