"""Register engines: by an operator, or by an engine's own host with the engine's key.

An engine's key is trusted only so far. It may register URLs on the host that it connects from and on no
other. What prices and traffic depend on is set by the operator or by the key's first registration, and cannot
be changed later. What is known of the base model may be completed but not changed, because other engines
serve it too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from adapters.drivers import driver_of
from adapters.errors import ConflictError, NotFoundError
from adapters.model import BaseModel, Engine, Version, check_name, dump
from adapters.registry.catalog import Catalog
from adapters.registry.transaction import Proposal
from adapters.store.protocol.registry import AuditNote, Change
from gateway.errors import FlorinError
from gateway.fleet.engines.operations import trials
from gateway.fleet.engines.operations.agents import check_agent, greet, lose_if_new
from gateway.fleet.engines.operations.checks import merge_base, normal_url, read_base, verify
from gateway.fleet.engines.operations.prompt_scores import learn
from gateway.fleet.engines.schemas.registration import NewEngine
from gateway.operations.state import State
from gateway.operations.transaction import RegistryReading, change, differences
from gateway.tenants import directory
from gateway.tenants.directory import Key
from gateway.tenants.engine_pins import contradiction, may_claim, settle


@dataclass(frozen=True, slots=True)
class EngineRegistration:
    old: Engine | None
    """The engine as it was registered before."""
    engine: Engine
    base: BaseModel
    agent_token: str | None = None
    """The token by which the registering agent recognizes the gateway."""


async def register(
    state: State, body: NewEngine, *, actor: str, own: Key | None = None, peer: str | None = None
) -> EngineRegistration:
    """Register an engine, or change its registration. `own` is the engine's key if its host registers it
    from the address `peer`, and None for an operator. Raises FlorinError, ConflictError, NotFoundError,
    EngineError."""
    if own is not None:
        _check_claims(own, body, peer)
    engine = replace(engine_from(body), key=own.id if own else "")
    if engine.serves:
        version = served_version(state.catalog, engine.serves, engine.base_model)
        engine = replace(engine, merged_as=version.engine_name, max_rank=version.rank)
    now = state.clock.now()
    await check_agent(state, engine.name, body.process)
    listing = None
    if body.verify or own:
        listing = await verify(state.engine_client, engine)
        engine = replace(engine, max_model_len=listing.max_model_len or 0)
        engine = await learn(state.engine_client, engine, state.catalog.engines.values(), now)
    claimed_base = await read_base(body, listing, state.settings.base_model_folders)
    await lose_if_new(state, engine)

    def plan(reading: RegistryReading) -> Proposal[EngineRegistration]:
        _check_url_free(reading, engine)
        _check_one_kind(reading, engine)
        old = reading.catalog.engines.get(engine.name)
        new = registered_again(old, engine) if old else replace(engine, registered=now)
        if own:  # a host does not settle whose requests it gets
            kept = old.tenant if old else ""
            new = replace(new, tenant=kept if own.pins.tenant is None else own.pins.tenant)
        _check_tenant(reading, new, old)
        fleet = reading.catalog.fleet(new.base_model)
        new = replace(new, trial=trials.after_registration(old, new, body.trial, fleet, now))
        known = reading.catalog.bases.get(body.base)
        base = merge_base(known, claimed_base)
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
    if body.process is None:
        return done
    return replace(done, agent_token=await greet(state, done.engine, body.process))


def registered_again(old: Engine, engine: Engine) -> Engine:
    """The engine, in the state that it was in."""
    drain = old.drain if old.state == "draining" or engine.stopping else None
    new = replace(engine, registered=old.registered, state=old.state, drain=drain)
    if new.rests and not new.serves:  # nothing else would end its rest
        return replace(new, state="active", drain=None)
    return new


def engine_from(body: NewEngine) -> Engine:
    """What is registered for `body`, without what its process reports. Raises FlorinError,
    InvalidNameError."""
    check_name("engine", body.name)
    same = body.model_dump(include={field.name for field in fields(Engine)} - {"trial"})
    process = body.process
    return Engine(
        **same
        | {
            "url": normal_url(body.url),
            "base_model": body.base,
            "slots": body.slots or 1,
            "max_rank": body.max_rank or 0,
            "cpu_slots": body.cpu_slots or body.slots or 1,
            "seats": body.seats or 0,
            "prompt_scores": body.prompt_scores or "unknown",
            "declared_scores": body.prompt_scores or "",
        },
        epoch=process.epoch if process else "",
        agent=normal_url(process.agent) if process else "",
        stopping=process.stopping if process else False,
    )


def served_version(catalog: Catalog, version_id: str, base: str) -> Version:
    """The version that an engine is said to have in its weights. Raises NotFoundError, FlorinError."""
    version = catalog.versions.get(version_id)
    if version is None or version.retired is not None:
        raise NotFoundError(f"There is no version {version_id}.")
    if version.base_model != base:
        raise FlorinError(
            "invalid_value",
            f"{version_id} is an adapter of {version.base_model}, not of {base}.",
            param="base",
        )
    return version


def _holds_other_adapters(done: EngineRegistration) -> bool:
    """Whether it is another process than before, so that its placement is unknown."""
    old, new = done.old, done.engine
    if old is None:
        return False
    return (old.url != new.url and not new.epoch) or old.model != new.model


def _check_claims(own: Key, body: NewEngine, peer: str | None) -> None:
    """Check the URLs before any request is sent to them. Raises FlorinError."""
    if body.process is None:
        raise FlorinError(
            "invalid_value", "An engine's key registers what `florin engine run` runs.", param="process"
        )
    if body.driver != "vllm":  # a fleet is of one kind: a host must not settle which
        raise FlorinError("invalid_value", "An engine's key registers vLLM.", param="driver")
    for url in (normal_url(body.url), normal_url(body.process.agent)):
        if not may_claim(own.pins, url, peer):
            may = own.pins.address or f"{peer}, from where it connects"
            raise FlorinError(
                "engine_pinned",
                f"Engine {own.engine} may be at {may}, but not at {url[:200]}: pin its address with "
                f"`florin engine token create --name {own.engine} --address …`, and enrol the host again.",
            )
    if body.tenant and body.tenant != own.pins.tenant:
        raise FlorinError(
            "engine_pinned",
            f"Only an operator sets engine {own.engine} aside for a tenant: enrol its host again "
            f"(`florin engine token create --name {own.engine} --tenant {body.tenant}`).",
            param="tenant",
        )
    _check_settled(own, body)


def _check_settled(own: Key, body: NewEngine) -> None:
    if conflict := contradiction(own.pins, body.model_dump()):
        raise FlorinError(
            "engine_pinned",
            f"Engine {own.engine} registers with {conflict}: to change that, enrol its host again "
            f"(`florin engine token create --name {own.engine}`).",
        )


def _check_tenant(reading: RegistryReading, new: Engine, old: Engine | None) -> None:
    """Raises NotFoundError."""
    known = old is not None and old.tenant == new.tenant
    if new.tenant and not known and new.tenant not in reading.directory.tenants:
        raise NotFoundError(f"There is no tenant {new.tenant!r} to set engine {new.name} aside for.")


def _settled(reading: RegistryReading, own: Key, body: NewEngine, *, changed: bool) -> list[Change]:
    """Pin what this registration sets for later ones. If it pins nothing new but changes something, prove
    that the key is still valid when the change is committed."""
    now = reading.directory.keys.get(own.id)
    if now is None or now.revoked is not None:
        raise FlorinError("revoked_api_key", "This API key has been revoked.")
    _check_settled(now, body)
    new = replace(now, pins=settle(now.pins, body.model_dump()))
    if new != now:
        return [reading.change("key", now.id, directory.dump(new), directory.dump(now))]
    return [reading.proof("key", now.id, directory.dump(now))] if changed else []


def _modest(catalog: Catalog, known: BaseModel | None, claimed: BaseModel) -> BaseModel:
    """The part of one host's claims about a base model that does not affect other engines or models."""
    if known is not None:
        template = claimed.chat_template if known.chat_template is None else known.chat_template
        return replace(known, config=known.config or claimed.config, chat_template=template)
    others = {name for base in catalog.bases.values() for name in (base.name, *base.aliases)}
    return replace(claimed, aliases=tuple(a for a in claimed.aliases if a not in others))


def _note(actor: str, old: Engine | None, new: Engine) -> AuditNote:
    action = "engine.update" if old else "engine.add"
    if old and new.epoch and old.epoch != new.epoch:
        action = "engine.epoch"
    return AuditNote(actor, action, new.name, details=differences(old, new))


def _check_one_kind(reading: RegistryReading, engine: Engine) -> None:
    """A request must mean the same wherever it goes: the engines of a fleet are all of one kind."""
    for other in reading.catalog.fleet(engine.base_model):
        if other.driver != engine.driver and other.name != engine.name:
            raise ConflictError(
                f"{engine.base_model} is served by {driver_of(other).title} ({other.name}), and not all "
                f"fields of a request mean the same on {driver_of(engine).title}: serve it there under "
                "another name."
            )


def _check_url_free(reading: RegistryReading, engine: Engine) -> None:
    for other in reading.catalog.engines.values():
        if other.url == engine.url and other.name != engine.name:
            raise ConflictError(
                f"Engine {other.name} is registered at {engine.url} already: remove it first, "
                "or give the right URL."
            )
