"""/admin/v1/engines"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import Field, StringConstraints

from adapters.errors import ConflictError, NotFoundError
from adapters.model import BaseModel, Engine, Purchase, SlotState, check_name, dump
from adapters.store import Change
from gateway.api.admin.common import Body, Json, Operator, Reading, change
from gateway.api.admin.fleet import base_for, normal_url, verify
from gateway.api.deps import State, StateDep
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
        )


class NewState(Body):
    state: Literal["active", "cordoned", "draining"]


@router.post("", status_code=201)
async def add_engine(body: NewEngine, state: StateDep, response: Response) -> Json:
    """Register an engine, or change what is known of it: 201 when it is new, 200 when it existed."""
    wanted = body.engine()
    now = time.time_ns() // 1000
    listing = await verify(state.control, wanted) if body.verify else None

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

    old, new, base = await change(state, plan)
    response.status_code = 200 if old else 201
    if old and (old.url, old.base_model) != (new.url, new.base_model):
        await state.store.unplace(new.name)  # another process: what it holds is to be found out
    return {**engine_json(state, new), "base_config": base.config is not None}


@router.get("")
async def list_engines(state: StateDep) -> Json:
    return {"data": [engine_json(state, e) for _, e in sorted(state.catalog.engines.items())]}


@router.put("/{name}/state")
async def set_state(name: str, body: NewState, state: StateDep) -> Json:
    """cordoned: takes no new adapters; draining: takes no new requests either; active: takes both."""

    async def plan(reading: Reading) -> tuple[list[Change], Engine]:
        old = reading.catalog.engines.get(name)
        if old is None:
            raise NotFoundError(f"There is no engine {name[:80]!r}.")
        new = replace(old, state=body.state)
        return [reading.change("engine", name, dump(new), dump(old))] if new != old else [], new

    return engine_json(state, await change(state, plan))


@router.delete("/{name}")
async def remove_engine(name: str, state: StateDep) -> Json:
    """Forget the engine and its placement. Its adapters are loaded elsewhere when they are called."""

    async def plan(reading: Reading) -> tuple[list[Change], bool]:
        known = name in reading.catalog.engines
        return [Change("engine", name, None)] if known else [], known

    known = await change(state, plan)
    if known:
        await state.store.unplace(name)
    return {"name": name, "removed": known}


def engine_json(state: State, engine: Engine) -> Json:
    fields = asdict(engine)
    fields["base"] = fields.pop("base_model")
    seen = state.pool.state(engine.name)
    slots = state.residency.slots(engine.name)
    return {
        **fields,
        "health": health(state, engine.name),
        "running": seen.running if seen else 0,
        "waiting": seen.waiting if seen else 0,
        "resident": sum(1 for s in slots.values() if s is not SlotState.LOADING),
    }


def health(state: State, name: str) -> Literal["up", "down", "unknown"]:
    seen = state.pool.state(name)
    if seen is None or (seen.healthy is None and not seen.suspect):
        return "unknown"
    return "up" if seen.healthy and not seen.suspect else "down"


def _check_url_free(reading: Reading, wanted: Engine) -> None:
    for other in reading.catalog.engines.values():
        if other.url == wanted.url and other.name != wanted.name:
            raise ConflictError(
                f"Engine {other.name} is registered at {wanted.url} already: remove it first, "
                "or give the right URL."
            )
