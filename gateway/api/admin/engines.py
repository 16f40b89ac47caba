"""/admin/v1/engines"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import Field, StringConstraints

from adapters.errors import ConflictError, InUseError, NotFoundError
from adapters.model import BaseModel, Engine, Purchase, SlotState, check_name, dump
from adapters.store import AuditNote, Change
from gateway.api.admin.common import Body, Json, Operator, Reading, change, differences, now_micros
from gateway.api.admin.fleet import base_for, normal_url, verify
from gateway.api.admin.hosts import Beats, HostFields, check_agent, greet, living, lose_if_new
from gateway.api.deps import Actor, State, StateDep
from gateway.errors import FlorinError

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Operator])

Label = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+( [\x21-\x7e]+)*$")
]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class NewEngine(Body):
    name: str = Field(examples=["a1"])
    url: str = Field(max_length=2000, examples=["http://10.0.0.7:8000"])
    base: Label = Field(description="The base model, as the engine serves it.")
    gpu_type: Label = Field(description="What prices are given for.", examples=["H200"])
    gpu_count: Count = 1
    region: str = Field(
        "",
        max_length=63,
        pattern=r"^[ -~]*$",
        description="Where its GPUs are paid for, as in the price book; empty: not said.",
        examples=["eu-1"],
    )
    purchase: Purchase = "on_demand"
    slots: Count = Field(description="--max-loras")
    cpu_slots: Count | None = Field(None, description="--max-cpu-loras; as many as `slots` if left out.")
    max_rank: Count = Field(description="--max-lora-rank")
    verify: bool = Field(True, description="Ask the engine, and refuse it if its answers do not fit.")
    base_config: str | None = Field(
        None, max_length=4096, description="Path of the base model's config.json on the gateway's host."
    )
    base_aliases: tuple[Label, ...] = Field(
        (), max_length=100, description="Other names that adapters give the base model."
    )
    host: HostFields | None = Field(None, description="What `florin engine run` says of its host.")

    @property
    def brought(self) -> tuple[dict[str, Any] | None, str | None] | None:
        return None if self.host is None else (self.host.config, self.host.chat_template)

    def engine(self) -> Engine:
        check_name("engine", self.name)
        cpu_slots = self.slots if self.cpu_slots is None else self.cpu_slots
        if cpu_slots < self.slots:
            raise FlorinError(
                "invalid_value",
                f"cpu_slots is {cpu_slots}, but must be at least slots ({self.slots}).",
                param="cpu_slots",
            )
        return Engine(
            name=self.name,
            url=normal_url(self.url),
            base_model=self.base,
            gpu_type=self.gpu_type,
            slots=self.slots,
            max_rank=self.max_rank,
            gpu_count=self.gpu_count,
            cpu_slots=cpu_slots,
            region=self.region,
            purchase=self.purchase,
            epoch=self.host.epoch if self.host else "",
            agent=normal_url(self.host.agent) if self.host else "",
            stopping=self.host.stopping if self.host else False,
        )


class NewState(Body):
    state: Literal["active", "cordoned", "draining"]


@router.post("", status_code=201)
async def add_engine(body: NewEngine, state: StateDep, actor: Actor, response: Response) -> Json:
    """Register an engine, or change what is known of it: 201 when it is new, 200 when it existed. A host's
    agent gets `agent_token`, by which it knows the gateway; it is refused while another of the name lives."""
    wanted = body.engine()
    now = now_micros()
    await check_agent(state, wanted.name, body.host)
    listing = await verify(state.control, wanted) if body.verify else None
    await lose_if_new(state, wanted)

    async def plan(reading: Reading) -> tuple[list[Change], tuple[Engine | None, Engine, BaseModel]]:
        _check_url_free(reading, wanted)
        old = reading.catalog.engines.get(wanted.name)
        kept = {"state": old.state, "registered": old.registered} if old else {"registered": now}
        new = replace(wanted, **kept)
        known = reading.catalog.bases.get(body.base)
        base = await base_for(known, body, listing)
        changes = []
        if base != known:
            changes.append(reading.change("base", base.name, dump(base), dump(known) if known else None))
        if new != old:
            changes.append(reading.change("engine", new.name, dump(new), dump(old) if old else None))
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


@router.get("")
async def list_engines(state: StateDep) -> Json:
    beats = await living(state)
    return {"data": [engine_json(state, e, beats) for _, e in sorted(state.catalog.engines.items())]}


@router.put("/{name}/state")
async def set_state(name: str, body: NewState, state: StateDep, actor: Actor) -> Json:
    """cordoned: takes no new adapters; draining: takes no new requests either; active: takes both."""

    async def plan(reading: Reading) -> tuple[list[Change], tuple[Engine, Engine]]:
        old = reading.catalog.engines.get(name)
        if old is None:
            raise NotFoundError(f"There is no engine {name[:80]!r}.")
        new = replace(old, state=body.state)
        return [reading.change("engine", name, dump(new), dump(old))] if new != old else [], (old, new)

    def note(answer: tuple[Engine, Engine]) -> AuditNote:
        return AuditNote(actor, "engine.state", name, details=differences(*answer))

    _, new = await change(state, plan, audit=note)
    return engine_json(state, new, await living(state))


@router.delete("/{name}")
async def remove_engine(name: str, state: StateDep, actor: Actor) -> Json:
    """Forget the engine and its placement. Its adapters are loaded elsewhere when they are called."""
    if name in (beats := await living(state)):
        raise InUseError(
            f"The agent at {beats[name].get('agent')} runs engine {name} and would register it again: "
            "stop `florin engine run` there first."
        )

    async def plan(reading: Reading) -> tuple[list[Change], bool]:
        known = name in reading.catalog.engines
        return [Change("engine", name, None)] if known else [], known

    known = await change(state, plan, audit=AuditNote(actor, "engine.remove", name))
    if known:
        await state.store.unplace(name)
    return {"name": name, "removed": known}


def engine_json(state: State, engine: Engine, beats: Beats | None) -> Json:
    """`beat`: what its agent said last; null: it has none, or is silent."""
    fields = asdict(engine)
    fields["base"] = fields.pop("base_model")
    seen = state.pool.state(engine.name)
    slots = state.residency.slots(engine.name)
    return {
        **fields,
        "health": health(state, engine.name),
        "running": seen.running if seen else 0,
        "waiting": seen.waiting if seen else 0,
        "resident": sum(1 for s in slots.values() if s not in {SlotState.LOADING, SlotState.LOST}),
        "beat": (beats or {}).get(engine.name),
    }


def health(state: State, name: str) -> Literal["up", "down", "unknown"]:
    seen = state.pool.state(name)
    if seen is None or (seen.healthy is None and not seen.suspect):
        return "unknown"
    return "up" if seen.healthy and not seen.suspect else "down"


def _note(actor: str, answer: tuple[Engine | None, Engine, BaseModel]) -> AuditNote:
    old, new, _ = answer
    action = "engine.update" if old else "engine.add"
    if old and new.epoch and old.epoch != new.epoch:
        action = "engine.epoch"
    return AuditNote(actor, action, new.name, details=differences(old, new))


def _check_url_free(reading: Reading, wanted: Engine) -> None:
    for other in reading.catalog.engines.values():
        if other.url == wanted.url and other.name != wanted.name:
            raise ConflictError(
                f"Engine {other.name} is registered at {wanted.url} already: remove it first, "
                "or give the right URL."
            )
