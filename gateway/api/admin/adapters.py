"""/admin/v1/adapters"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field, StringConstraints

from adapters.errors import EngineError, NotFoundError
from adapters.model import Adapter, AdapterName, Version
from gateway.api.admin.common import Body, Json, Operator, catch_up
from gateway.api.deps import State, StateDep
from gateway.errors import FlorinError

log = logging.getLogger(__name__)

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Operator])

_UNLOAD_SECONDS = 5.0

VersionName = Annotated[str, StringConstraints(pattern=r"^v[1-9][0-9]{0,8}$")]


class NewAdapter(Body):
    adapter: str = Field(description="TENANT/NAME", max_length=200, examples=["acme/support"])
    source: str = Field(
        description="Absolute directory on the gateway's host, or a file:// URL.",
        min_length=1,
        max_length=4096,
    )
    base_model: str | None = Field(
        None, max_length=500, description="The fleet, where several could be meant."
    )
    assume_base: bool = Field(False, description="Accept an adapter that names another base model.")


class NewLive(Body):
    version: VersionName = Field(examples=["v2"])


class NewPin(Body):
    pinned: bool


@router.post("", status_code=201)
async def add_adapter(body: NewAdapter, state: StateDep, response: Response) -> Json:
    """Register an adapter or a new version: 201; the same content again: 200 and the version that has it.
    The first version is live at once."""
    name = AdapterName.parse(body.adapter)
    try:
        registered = await state.registrar.add_adapter(
            name, body.source, base_model=body.base_model, assume_base=body.assume_base
        )
    except OSError as error:
        raise FlorinError(
            "artifacts_unavailable", f"The version's files cannot be stored: {error}."
        ) from error
    await catch_up(state)
    response.status_code = 201 if registered.created else 200
    return {
        "adapter": str(name),
        "version": f"v{registered.version.number}",
        "digest": registered.version.digest,
        "live": _label(registered.live),
        "created": registered.created,
    }


@router.get("")
async def list_adapters(state: StateDep, tenant: Annotated[str | None, Query()] = None) -> Json:
    found = [a for _, a in sorted(state.catalog.adapters.items())]
    return {"data": [adapter_json(state, a) for a in found if tenant in (None, a.name.partition("/")[0])]}


@router.get("/{tenant}/{name}")
async def show_adapter(tenant: str, name: str, state: StateDep) -> Json:
    adapter = _find(state, _name(tenant, name))
    details = [version_json(state, v) for v in _versions(state, adapter)]
    return {**adapter_json(state, adapter), "version_details": details}


@router.get("/{tenant}/{name}/versions")
async def list_versions(tenant: str, name: str, state: StateDep) -> Json:
    adapter = _find(state, _name(tenant, name))
    return {"data": [version_json(state, v) for v in _versions(state, adapter)]}


@router.put("/{tenant}/{name}/live")
async def promote(tenant: str, name: str, body: NewLive, state: StateDep) -> Json:
    """Make a version live; what was live before is where a rollback goes."""
    adapter = await state.registrar.promote(_name(tenant, name), int(body.version[1:]))
    return await _settled(state, adapter)


@router.post("/{tenant}/{name}/rollback")
async def rollback(tenant: str, name: str, state: StateDep) -> Json:
    """Make live what was live before the last promotion; a second time undoes that."""
    return await _settled(state, await state.registrar.rollback(_name(tenant, name)))


@router.put("/{tenant}/{name}/pin")
async def pin(tenant: str, name: str, body: NewPin, state: StateDep) -> Json:
    """Keep the live version in its slot, whichever version it is, or no longer."""
    return await _settled(state, await state.registrar.pin(_name(tenant, name), body.pinned))


@router.delete("/{tenant}/{name}")
async def remove_adapter(tenant: str, name: str, state: StateDep) -> Json:
    """Remove the adapter with all of its versions, from the engines too. Requests that run finish."""
    full_name = _name(tenant, name)
    try:
        versions = await state.registrar.remove(full_name)
    except NotFoundError:
        return {"adapter": str(full_name), "removed": False}
    await catch_up(state)
    await asyncio.gather(
        *(_take_off(state, v, e) for v in versions for e in state.residency.where(v.engine_name))
    )
    return {"adapter": str(full_name), "removed": True}


async def _take_off(state: State, version: Version, engine_name: str) -> None:
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


def adapter_json(state: State, adapter: Adapter) -> Json:
    versions = _versions(state, adapter)
    return {
        "adapter": adapter.name,
        "live": _label(adapter.live),
        "previous": _label(adapter.previous),
        "versions": [f"v{v.number}" for v in versions],
        "pinned": adapter.pinned,
        "placed": [p for v in versions for p in _placed(state, v)],
    }


def version_json(state: State, version: Version) -> Json:
    return {
        "version": f"v{version.number}",
        "digest": version.digest,
        "rank": version.rank,
        "size_bytes": version.size_bytes,
        "base_model": version.base_model,
        "source": version.source,
        "path": version.path,
        "created": version.created,
        "engine_name": version.engine_name,
        "placed": _placed(state, version),
    }


def _placed(state: State, version: Version) -> list[Json]:
    where = state.residency.where(version.engine_name)
    return [{"engine": e, "state": s, "version": f"v{version.number}"} for e, s in sorted(where.items())]


def _versions(state: State, adapter: Adapter) -> list[Version]:
    """Oldest first."""
    known = state.catalog.versions
    ids = (f"{adapter.name}@v{number}" for number in range(1, adapter.latest + 1))
    return [known[i] for i in ids if i in known]


def _find(state: State, name: AdapterName) -> Adapter:
    adapter = state.catalog.adapters.get(str(name))
    if adapter is None:
        raise NotFoundError(f"There is no adapter {str(name)!r}.")
    return adapter


def _name(tenant: str, name: str) -> AdapterName:
    return AdapterName.parse(f"{tenant}/{name}")


def _label(number: int | None) -> str | None:
    return None if number is None else f"v{number}"
