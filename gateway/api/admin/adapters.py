"""/admin/v1/adapters: what there is, and the life of its versions after they were added."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints

from adapters.model import Adapter, AdapterName, Version
from gateway.api.admin.adapter_json import adapter_json, version_json, versions_of
from gateway.api.admin.common import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.operations import adapters
from gateway.operations.inputs import StrictBody
from gateway.operations.state import State
from gateway.operations.transaction import Json

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Operator])

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
    adapter = adapters.find(state, _name(tenant, name))
    return {**adapter_json(state, adapter), "version_details": _details(state, adapter)}


@router.get("/{tenant}/{name}/versions")
async def list_versions(tenant: str, name: str, state: StateDep) -> Json:
    """The adapter's versions, with what is wrong with them, if anything."""
    return {"data": _details(state, adapters.find(state, _name(tenant, name)))}


@router.put("/{tenant}/{name}/live")
async def promote(tenant: str, name: str, body: NewLive, state: StateDep, actor: Actor) -> Json:
    """Make a version live, or a canary that gets `weight` percent of the calls. It is loaded first, on as
    many engines as hold what is live (of a canary: as its share asks for); a refusal changes nothing."""
    adapter, warmed = await adapters.promote(
        state,
        _name(tenant, name),
        int(body.version[1:]),
        weight=body.weight,
        wait=body.wait,
        actor=actor,
    )
    return adapter_json(state, adapter) | {
        "resident": list(warmed.engines) if warmed else None,
        "warnings": [warmed.short] if warmed and warmed.short else [],
    }


@router.post("/{tenant}/{name}/rollback")
async def rollback(tenant: str, name: str, state: StateDep, actor: Actor) -> Json:
    """End the canary; without one, make live what was live before, one step further back each time. It holds
    at once; what is live then is loaded afterwards, where it is not resident."""
    return adapter_json(state, await adapters.rollback(state, _name(tenant, name), actor=actor))


@router.post("/{tenant}/{name}/versions/{version}/retire")
async def retire(tenant: str, name: str, version: VersionName, state: StateDep, actor: Actor) -> Json:
    """Nobody can call the version any more; requests that run finish. Its files go when no engine can hold
    them. Not the live version, nor the canary."""
    full_name = _name(tenant, name)
    retired = await adapters.retire(state, full_name, int(version[1:]), actor=actor)
    return _version_json(state, full_name, retired)


@router.post("/{tenant}/{name}/versions/{version}/release")
async def release(tenant: str, name: str, version: VersionName, state: StateDep, actor: Actor) -> Json:
    """Serve a version that was quarantined or failed: somebody has looked at the evidence. From now on it may
    answer like the base model, and what it answers after its next load is what it is held to. Without a
    serving status nothing changes."""
    full_name = _name(tenant, name)
    released, changed = await adapters.release(state, full_name, version, actor=actor)
    shown = _version_json(state, full_name, released)
    return {"adapter": str(full_name), "released": changed, **shown}


@router.put("/{tenant}/{name}/pin")
async def pin(tenant: str, name: str, body: NewPin, state: StateDep, actor: Actor) -> Json:
    """Keep the live version and the canary in their slots, whichever versions they are, or no longer."""
    adapter = await adapters.pin(state, _name(tenant, name), pinned=body.pinned, actor=actor)
    return adapter_json(state, adapter)


@router.delete("/{tenant}/{name}")
async def remove_adapter(tenant: str, name: str, state: StateDep, actor: Actor) -> Json:
    """Remove the adapter with all of its versions, from the engines too. Requests that run finish. If it is
    ever added again, its numbers go on."""
    full_name = _name(tenant, name)
    return {"adapter": str(full_name), "removed": await adapters.remove(state, full_name, actor=actor)}


def _details(state: State, adapter: Adapter) -> list[Json]:
    return [version_json(state, adapter, v) for v in versions_of(state, adapter)]


def _version_json(state: State, name: AdapterName, version: Version) -> Json:
    return {"adapter": str(name), **version_json(state, adapters.find(state, name), version)}


def _name(tenant: str, name: str) -> AdapterName:
    return AdapterName.parse(f"{tenant}/{name}")
