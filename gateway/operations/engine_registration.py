"""What operators register, and what a host registers of itself with the key of its engine.

Such a key is believed only so far: its requests may be sent to the host that they come from and to no other,
and what money and traffic follow is settled by the operator, or by the key's first registration. What a base
model is checked against it may complete, but not change: other engines serve it too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from adapters.errors import ConflictError
from adapters.model import BaseModel, Engine, dump
from adapters.registry.catalog import Catalog
from adapters.registry.transaction import Proposal
from adapters.store.protocol import AuditNote, Change
from gateway.errors import FlorinError
from gateway.operations.engine_agents import check_agent, greet, lose_if_new
from gateway.operations.engine_checks import merge_base, normal_url, read_base, verify
from gateway.operations.inputs import NewEngine
from gateway.operations.state import State
from gateway.operations.transaction import RegistryReading, change, differences
from gateway.tenants import directory
from gateway.tenants.directory import Key
from gateway.tenants.engine_pins import contradiction, may_claim, settle


@dataclass(frozen=True, slots=True)
class EngineRegistration:
    old: Engine | None
    """What was there before."""
    engine: Engine
    base: BaseModel
    agent_token: str | None = None
    """By which the agent that has registered knows the gateway."""


async def register(
    state: State, body: NewEngine, *, actor: str, own: Key | None = None, peer: str | None = None
) -> EngineRegistration:
    """Register an engine, or change what is known of it. `own`: the engine's key, where its host registers it
    from the address `peer`; None: an operator does. Raises FlorinError, ConflictError, NotFoundError,
    EngineError."""
    if own is not None:
        _check_claims(own, body, peer)
    wanted = replace(body.engine(), key=own.id if own else "")
    now = state.clock.now()
    await check_agent(state, wanted.name, body.host)
    listing = await verify(state.control, wanted) if body.verify or own else None
    told = await read_base(body, listing)
    await lose_if_new(state, wanted)

    def plan(reading: RegistryReading) -> Proposal[EngineRegistration]:
        _check_url_free(reading, wanted)
        old = reading.catalog.engines.get(wanted.name)
        kept = {"state": old.state, "registered": old.registered} if old else {"registered": now}
        new = replace(wanted, **kept)
        known = reading.catalog.bases.get(body.base)
        base = merge_base(known, told)
        base = _modest(reading.catalog, known, base) if own else base
        changes = []
        if base != known:
            changes.append(reading.change("base", base.name, dump(base), dump(known) if known else None))
        if new != old:
            changes.append(reading.change("engine", new.name, dump(new), dump(old) if old else None))
        if own:
            changes += _settled(reading, own, body, changed=bool(changes))
        return Proposal(changes, EngineRegistration(old, new, base), _note(actor, old, new))

    done = await change(state, plan)
    if _holds_other_adapters(done):
        await state.store.unplace(done.engine.name)
    if body.host is None:
        return done
    return replace(done, agent_token=await greet(state, done.engine, body.host))


def _holds_other_adapters(done: EngineRegistration) -> bool:
    """It is another process than before, and what it holds is to be found out."""
    old, new = done.old, done.engine
    if old is None:
        return False
    return (old.url != new.url and not new.epoch) or old.base_model != new.base_model


def _check_claims(own: Key, body: NewEngine, peer: str | None) -> None:
    """Before anything is asked of the URLs. Raises FlorinError."""
    if body.host is None:
        raise FlorinError(
            "invalid_value", "An engine's key registers what `florin engine run` runs.", param="host"
        )
    for url in (normal_url(body.url), normal_url(body.host.agent)):
        if not may_claim(own.pins, url, peer):
            may = own.pins.address or f"{peer}, from where it connects"
            raise FlorinError(
                "engine_pinned",
                f"Engine {own.engine} may be at {may}, and not at {url[:200]}: pin its address with "
                f"`florin engine token create --name {own.engine} --address …`, and enrol the host anew.",
            )
    _check_settled(own, body)


def _check_settled(own: Key, body: NewEngine) -> None:
    if said := contradiction(own.pins, body.model_dump()):
        raise FlorinError(
            "engine_pinned",
            f"Engine {own.engine} registers with {said}: to change that, enrol its host anew "
            f"(`florin engine token create --name {own.engine}`).",
        )


def _settled(reading: RegistryReading, own: Key, body: NewEngine, *, changed: bool) -> list[Change]:
    """What this registration settles for those to come; else, where something is changed, that the key holds
    when it is."""
    now = reading.directory.keys.get(own.id)
    if now is None or now.revoked is not None:
        raise FlorinError("revoked_api_key", "This API key has been revoked.")
    _check_settled(now, body)
    new = replace(now, pins=settle(now.pins, body.model_dump()))
    if new != now:
        return [reading.change("key", now.id, directory.dump(new), directory.dump(now))]
    return [reading.proof("key", now.id, directory.dump(now))] if changed else []


def _modest(catalog: Catalog, known: BaseModel | None, said: BaseModel) -> BaseModel:
    """Of what one host says of a base model, what takes nothing from the other engines and their models."""
    if known is not None:
        template = said.chat_template if known.chat_template is None else known.chat_template
        return replace(known, config=known.config or said.config, chat_template=template)
    others = {name for base in catalog.bases.values() for name in (base.name, *base.aliases)}
    return replace(said, aliases=tuple(a for a in said.aliases if a not in others))


def _note(actor: str, old: Engine | None, new: Engine) -> AuditNote:
    action = "engine.update" if old else "engine.add"
    if old and new.epoch and old.epoch != new.epoch:
        action = "engine.epoch"
    return AuditNote(actor, action, new.name, details=differences(old, new))


def _check_url_free(reading: RegistryReading, wanted: Engine) -> None:
    for other in reading.catalog.engines.values():
        if other.url == wanted.url and other.name != wanted.name:
            raise ConflictError(
                f"Engine {other.name} is registered at {wanted.url} already: remove it first, "
                "or give the right URL."
            )
