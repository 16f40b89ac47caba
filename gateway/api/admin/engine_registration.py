"""POST /admin/v1/engines and GET /admin/v1/engines/{name}: what operators register, and what a host registers
of itself with the key of its engine.

Such a key is believed only so far: its requests may be sent to the host that they come from and to no other,
and what money and traffic follow is settled by the operator, or by the key's first registration. What a base
model is checked against it may complete, but not change: other engines serve it too.
"""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request, Response

from adapters.errors import ConflictError, NotFoundError
from adapters.model import BaseModel, Engine, dump
from adapters.registry.catalog import Catalog
from adapters.store.protocol import AuditNote, Change
from gateway.api.admin.common import Host
from gateway.api.admin.engine_agents import check_agent, greet, living, lose_if_new
from gateway.api.admin.engines import engine_json
from gateway.api.dependencies import HostKey, StateDep
from gateway.errors import FlorinError
from gateway.operations.authorization import actor_of, check_own_engine
from gateway.operations.engine_checks import base_for, normal_url, verify
from gateway.operations.inputs import NewEngine
from gateway.operations.state import State
from gateway.operations.transaction import Json, RegistryReading, change, differences
from gateway.tenants import directory
from gateway.tenants.directory import Key, Role
from gateway.tenants.engine_pins import contradiction, may_claim, settle

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Host])


@router.post("", status_code=201)
async def add_engine(
    body: NewEngine, state: StateDep, key: HostKey, request: Request, response: Response
) -> Json:
    """Register an engine, or change what is known of it: 201 when it is new, 200 when it existed. A host's
    agent gets `agent_token`, by which it knows the gateway; it is refused while another of the name lives.
    The key of an engine registers that engine, from its own host, and changes neither what was pinned when it
    was enrolled nor what it registered with first."""
    check_own_engine(key, body.name)
    own = key if key.role is Role.ENGINE else None
    if own is not None:
        _check_claims(own, body, request.client.host if request.client else None)
    return await register(body, state, actor_of(key), response, own=own)


@router.get("/{name}")
async def show_engine(name: str, state: StateDep) -> Json:
    """One engine, with its health and load as this worker sees them."""
    engine = state.catalog.engines.get(name)
    if engine is None:
        raise NotFoundError(f"There is no engine {name[:80]!r}.")
    return engine_json(state, engine, await living(state))


Answer = tuple[Engine | None, Engine, BaseModel]
"""What was there before, what is there now, and its base model."""


async def register(
    body: NewEngine, state: State, actor: str, response: Response, *, own: Key | None = None
) -> Json:
    """`own`: the engine's key, where its host registers it; None: an operator does."""
    wanted = replace(body.engine(), key=own.id if own else "")
    now = state.clock.now()
    await check_agent(state, wanted.name, body.host)
    listing = await verify(state.control, wanted) if body.verify or own else None
    await lose_if_new(state, wanted)

    async def plan(reading: RegistryReading) -> tuple[list[Change], Answer]:
        _check_url_free(reading, wanted)
        old = reading.catalog.engines.get(wanted.name)
        kept = {"state": old.state, "registered": old.registered} if old else {"registered": now}
        new = replace(wanted, **kept)
        known = reading.catalog.bases.get(body.base)
        base = await base_for(known, body, listing)
        base = _modest(reading.catalog, known, base) if own else base
        changes = []
        if base != known:
            changes.append(reading.change("base", base.name, dump(base), dump(known) if known else None))
        if new != old:
            changes.append(reading.change("engine", new.name, dump(new), dump(old) if old else None))
        if own:
            changes += _settled(reading, own, body, changed=bool(changes))
        return changes, (old, new, base)

    old, new, base = await change(state, plan, audit=lambda answer: _note(actor, answer))
    response.status_code = 200 if old else 201
    moved = old and old.url != new.url and not new.epoch
    if old and (moved or old.base_model != new.base_model):
        await state.store.unplace(new.name)  # another process: what it holds is to be found out
    answer = {**engine_json(state, new, None), "base_config": base.config is not None}
    if body.host:
        answer["agent_token"] = await greet(state, new, body.host)
    return answer


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
    if new == now and not changed:
        return []
    made = reading.change("key", now.id, directory.dump(new), directory.dump(now))
    return [made if new != now else replace(made, data=made.expect)]


def _modest(catalog: Catalog, known: BaseModel | None, said: BaseModel) -> BaseModel:
    """Of what one host says of a base model, what takes nothing from the other engines and their models."""
    if known is not None:
        template = said.chat_template if known.chat_template is None else known.chat_template
        return replace(known, config=known.config or said.config, chat_template=template)
    others = {name for base in catalog.bases.values() for name in (base.name, *base.aliases)}
    return replace(said, aliases=tuple(a for a in said.aliases if a not in others))


def _note(actor: str, answer: Answer) -> AuditNote:
    old, new, _ = answer
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
