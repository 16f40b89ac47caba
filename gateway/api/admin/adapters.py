"""/admin/v1/adapters: what there is, and the life of its versions after they were added."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints

from adapters.errors import EngineError, NoEngineError, NotFoundError
from adapters.model import Adapter, AdapterName, Version
from gateway.api.admin.adapter_json import adapter_json, version_json, versions_of
from gateway.api.admin.common import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.operations.inputs import StrictBody
from gateway.operations.state import State
from gateway.operations.transaction import Json, catch_up
from gateway.routing.prewarming import Prewarmed

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Operator])

_UNLOAD_SECONDS = 5.0

VersionName = Annotated[str, StringConstraints(pattern=r"^v[1-9][0-9]{0,8}$")]


class NewLive(StrictBody):
    version: VersionName = Field(examples=["v2"])
    weight: int = Field(
        100, ge=1, le=100, description="Percent of the calls; below 100 as a canary beside what is live."
    )
    wait: bool = Field(True, description="Load it first, and change nothing when no engine can hold it.")


class NewPin(StrictBody):
    pinned: bool


@router.get("")
async def list_adapters(state: StateDep, tenant: Annotated[str | None, Query()] = None) -> Json:
    """All adapters, or one tenant's, by name."""
    found = [a for _, a in sorted(state.catalog.adapters.items())]
    return {"data": [adapter_json(state, a) for a in found if tenant in (None, a.name.partition("/")[0])]}


@router.get("/{tenant}/{name}")
async def show_adapter(tenant: str, name: str, state: StateDep) -> Json:
    """One adapter, with its versions in `version_details`."""
    adapter = _find(state, _name(tenant, name))
    return {**adapter_json(state, adapter), "version_details": _details(state, adapter)}


@router.get("/{tenant}/{name}/versions")
async def list_versions(tenant: str, name: str, state: StateDep) -> Json:
    """The adapter's versions, with what is wrong with them, if anything."""
    return {"data": _details(state, _find(state, _name(tenant, name)))}


@router.put("/{tenant}/{name}/live")
async def promote(tenant: str, name: str, body: NewLive, state: StateDep, actor: Actor) -> Json:
    """Make a version live, or a canary that gets `weight` percent of the calls. It is loaded first, on as
    many engines as hold what is live (of a canary: as its share asks for); a refusal changes nothing."""
    adapter, warmed = await switch(
        state,
        _name(tenant, name),
        int(body.version[1:]),
        weight=body.weight,
        wait=body.wait,
        actor=actor,
    )
    shown = await _settled(state, adapter)
    return shown | {
        "resident": list(warmed.engines) if warmed else None,
        "warnings": [warmed.short] if warmed and warmed.short else [],
    }


async def switch(
    state: State, name: AdapterName, number: int, *, weight: int = 100, wait: bool = True, actor: str
) -> tuple[Adapter, Prewarmed | None]:
    """Promote, once the version is resident. Raises what `Warmer.warm` and `Registrar.promote` raise; then
    nothing has changed."""
    warmed = None
    if wait:
        version = state.registrar.loadable_version(name, number)
        adapter = _find(state, name)
        live = state.catalog.versions.get(f"{name}@v{adapter.live}")
        try:
            warmed = await state.warmer.warm(version, like=live, share=weight)
        except NoEngineError as error:
            raise NoEngineError(
                f"{error} Nothing has changed: make room for it there, or promote it without loading it "
                "first (--no-wait; `wait: false`)."
            ) from error
    return await state.registrar.promote(name, number, weight=weight, actor=actor), warmed


@router.post("/{tenant}/{name}/rollback")
async def rollback(tenant: str, name: str, state: StateDep, actor: Actor) -> Json:
    """End the canary; without one, make live what was live before, one step further back each time. It holds
    at once; what is live then is loaded afterwards, where it is not resident."""
    full_name = _name(tenant, name)
    before = _find(state, full_name)
    adapter = await state.registrar.rollback(full_name, actor=actor)
    shown = await _settled(state, adapter)
    live = state.catalog.versions.get(f"{full_name}@v{adapter.live}")
    if live:
        state.warmer.warm_later(live, like=state.catalog.versions.get(f"{full_name}@v{before.live}"))
    return shown


@router.post("/{tenant}/{name}/versions/{version}/retire")
async def retire(tenant: str, name: str, version: VersionName, state: StateDep, actor: Actor) -> Json:
    """Nobody can call the version any more; requests that run finish. Its files go when no engine can hold
    them. Not the live version, nor the canary."""
    full_name = _name(tenant, name)
    retired = await state.registrar.retire(full_name, int(version[1:]), actor=actor)
    await _take_off(state, [retired])
    return {"adapter": str(full_name), **version_json(state, _find(state, full_name), retired)}


@router.put("/{tenant}/{name}/pin")
async def pin(tenant: str, name: str, body: NewPin, state: StateDep, actor: Actor) -> Json:
    """Keep the live version and the canary in their slots, whichever versions they are, or no longer."""
    return await _settled(state, await state.registrar.pin(_name(tenant, name), body.pinned, actor=actor))


@router.delete("/{tenant}/{name}")
async def remove_adapter(tenant: str, name: str, state: StateDep, actor: Actor) -> Json:
    """Remove the adapter with all of its versions, from the engines too. Requests that run finish. If it is
    ever added again, its numbers go on."""
    full_name = _name(tenant, name)
    try:
        versions = await state.registrar.remove(full_name, actor=actor)
    except NotFoundError:
        return {"adapter": str(full_name), "removed": False}
    await _take_off(state, versions)
    return {"adapter": str(full_name), "removed": True}


async def _take_off(state: State, versions: list[Version] | tuple[Version, ...]) -> None:
    await catch_up(state)
    await asyncio.gather(
        *(_unload(state, v, e) for v in versions for e in state.residency.where(v.engine_name))
    )


async def _unload(state: State, version: Version, engine_name: str) -> None:
    """An engine that does not answer now will be set right by the reconciler when it does."""
    engine = state.catalog.engines.get(engine_name)
    if engine is not None:
        with suppress(TimeoutError, EngineError):
            async with asyncio.timeout(_UNLOAD_SECONDS):
                await state.control.unload(engine, version.engine_name)
    await state.store.unplace(engine_name, version.engine_name)


async def _settled(state: State, adapter: Adapter) -> Json:
    await catch_up(state)
    return adapter_json(state, adapter)


def _details(state: State, adapter: Adapter) -> list[Json]:
    return [version_json(state, adapter, v) for v in versions_of(state, adapter)]


def _find(state: State, name: AdapterName) -> Adapter:
    adapter = state.catalog.adapters.get(str(name))
    if adapter is None:
        raise NotFoundError(f"There is no adapter {str(name)!r}.")
    return adapter


def _name(tenant: str, name: str) -> AdapterName:
    return AdapterName.parse(f"{tenant}/{name}")
