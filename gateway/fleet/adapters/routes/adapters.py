"""/admin/v1/adapters: lists adapters, and manages their versions after registration."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from adapters import model
from adapters.model import AdapterName
from adapters.registry.changes.live_version import CanaryTerms
from gateway.api.admin_requests import Managed, ManagedOrControlled, Operator, listed
from gateway.api.dependencies import Actor, Manager, Remover, StateDep
from gateway.evaluations import operations as evaluations
from gateway.fleet.adapters.operations import adapters, canaries
from gateway.fleet.adapters.routes.answers import adapter_answer, version_answer, versions_of, warmed
from gateway.fleet.adapters.schemas.adapters import (
    Adapter,
    AdapterDetails,
    AdapterVersion,
    NewLive,
    NewPin,
    NewReplicas,
    PromotedAdapter,
    ReleasedVersion,
    RemovedAdapter,
    ScaledAdapter,
    VersionDetails,
    VersionName,
)
from gateway.operations.authorization import Authority
from gateway.operations.state import State
from gateway.schemas.base import Listed, StrictBody
from gateway.tenants.schemas.terms import CostCentre

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Managed])
controlled = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[ManagedOrControlled])


class AdapterState(StrEnum):
    CANARY = "canary"
    HELD = "held"
    PINNED = "pinned"
    LOADED = "loaded"
    UNLOADED = "unloaded"


class AdapterFilter(BaseModel):
    tenant: str | None = None
    base: Annotated[str | None, Query(description="Base model of the live version.")] = None
    engine: Annotated[str | None, Query(description="An engine that one of its versions is placed on.")] = (
        None
    )
    state: Annotated[
        AdapterState | None,
        Query(
            description="`canary`: has one; `held`: its guard holds its weight; `pinned`; `loaded`: an "
            "engine holds the live version; `unloaded`: none does."
        ),
    ] = None
    problems: Annotated[bool, Query(description="Only those with a version that is not served.")] = False

    def matches(self, adapter: Adapter) -> bool:
        """`adapter`: as its reader sees it, so a filter tells nobody more than that."""
        return (
            self.tenant in (None, adapter.adapter.partition("/")[0])
            and self.base in (None, adapter.base_model)
            and (self.engine is None or self.engine in {place.engine for place in adapter.placed or ()})
            and (self.state is None or _STATES[self.state](adapter))
            and (not self.problems or bool(adapter.trouble))
        )


_STATES: Final[dict[AdapterState, Callable[[Adapter], bool]]] = {
    AdapterState.CANARY: lambda adapter: adapter.canary is not None,
    AdapterState.HELD: lambda adapter: adapter.canary is not None and adapter.canary.held is not None,
    AdapterState.PINNED: lambda adapter: bool(adapter.pinned),
    AdapterState.LOADED: lambda adapter: adapter.loaded,
    AdapterState.UNLOADED: lambda adapter: not adapter.loaded,
}


class NewCostCentre(StrictBody):
    cost_centre: CostCentre | None = Field(
        description="Label of its tenant's usage of it, where the key has none; null: none.",
        examples=["R&D"],
    )


@controlled.get("", response_model=Listed[Adapter])
async def list_adapters(
    state: StateDep, authority: Remover, chosen: Annotated[AdapterFilter, Query()]
) -> Response:
    """The adapters that the key may see, by name; those that meet all of the given conditions. A key of role
    `tenant-admin` sees its own tenant's, without the fields that describe the fleet."""
    visible = [a for name, a in sorted(state.catalog.adapters.items()) if authority.sees(name)]
    return await listed(visible, lambda adapter: adapter_answer(state, adapter, authority), chosen.matches)


@router.get("/{tenant}/{name}", response_model_exclude_unset=True)
async def show_adapter(tenant: str, name: str, state: StateDep, authority: Manager) -> AdapterDetails:
    """One adapter, with its versions, and how the canary and the live version answered in the last window."""
    adapter = adapters.find(state, _name(tenant, name), authority)
    return AdapterDetails.of(
        adapter_answer(state, adapter, authority),
        version_details=await _details(state, adapter, authority),
        comparison=await canaries.comparison(state, adapter),
    )


@router.get("/{tenant}/{name}/versions", response_model_exclude_unset=True)
async def list_versions(
    tenant: str, name: str, state: StateDep, authority: Manager
) -> Listed[VersionDetails]:
    """An adapter's versions with their states, problems and last evaluations."""
    adapter = adapters.find(state, _name(tenant, name), authority)
    return Listed(data=await _details(state, adapter, authority))


@router.put("/{tenant}/{name}/live", response_model_exclude_unset=True)
async def promote(
    tenant: str, name: str, body: NewLive, state: StateDep, authority: Manager
) -> PromotedAdapter:
    """Make a version live, or a canary that gets `weight` percent of calls. It is loaded first, on as many
    engines as hold the live version (for a canary, in proportion to its weight). A refusal changes
    nothing."""
    adapter, promoted = await adapters.promote(
        state,
        _name(tenant, name),
        int(body.version[1:]),
        weight=body.weight,
        terms=_terms(body),
        wait=body.wait,
        require_eval=body.require_eval or bool(body.require_eval_of),
        require_eval_of=body.require_eval_of,
        authority=authority,
    )
    return PromotedAdapter.of(adapter_answer(state, adapter, authority), **warmed(promoted, authority))


@router.post("/{tenant}/{name}/rollback", response_model_exclude_unset=True)
async def rollback(tenant: str, name: str, state: StateDep, authority: Manager) -> Adapter:
    """End the canary; without one, restore the previous live version, one step further back each time. Takes
    effect at once; the version is loaded afterwards if it is not resident."""
    adapter = await adapters.rollback(state, _name(tenant, name), authority=authority)
    return adapter_answer(state, adapter, authority)


@router.post("/{tenant}/{name}/versions/{version}/retire", response_model_exclude_unset=True)
async def retire(
    tenant: str, name: str, version: VersionName, state: StateDep, authority: Manager
) -> AdapterVersion:
    """Retire a version that is neither live nor canary: it can no longer be called. Running requests finish;
    its files are deleted once no engine can hold them."""
    full_name = _name(tenant, name)
    retired = await adapters.retire(state, full_name, int(version[1:]), authority=authority)
    return _version(state, full_name, retired, authority)


@router.post(
    "/{tenant}/{name}/versions/{version}/release", dependencies=[Operator], response_model_exclude_unset=True
)
async def release(
    tenant: str, name: str, version: VersionName, state: StateDep, actor: Actor
) -> ReleasedVersion:
    """Serve a version that is quarantined or failed. A quarantined version may then answer like the base
    model; its answers after the next load become its new reference. Changes nothing if the version is served
    already."""
    full_name = _name(tenant, name)
    released, changed = await adapters.release(state, full_name, version, actor=actor)
    return ReleasedVersion.of(_version(state, full_name, released, Authority(actor)), released=changed)


@router.put("/{tenant}/{name}/pin", dependencies=[Operator], response_model_exclude_unset=True)
async def pin(tenant: str, name: str, body: NewPin, state: StateDep, actor: Actor) -> Adapter:
    """Pin or unpin an adapter. While it is pinned, its live and canary versions are never evicted."""
    adapter = await adapters.pin(state, _name(tenant, name), pinned=body.pinned, actor=actor)
    return adapter_answer(state, adapter, Authority(actor))


@router.put("/{tenant}/{name}/replicas", dependencies=[Operator], response_model_exclude_unset=True)
async def scale(tenant: str, name: str, body: NewReplicas, state: StateDep, actor: Actor) -> ScaledAdapter:
    """Bound the number of engines that hold an adapter. Between the bounds, Florin follows the demand. A
    bound that is left out stays as it is."""
    bounds = body.model_dump(exclude_unset=True)
    adapter = await adapters.scale(state, _name(tenant, name), bounds, actor=actor)
    warnings = adapters.unreachable(state, adapter)
    return ScaledAdapter.of(adapter_answer(state, adapter, Authority(actor)), warnings=warnings)


@router.put("/{tenant}/{name}/cost-centre", response_model_exclude_unset=True)
async def label(tenant: str, name: str, body: NewCostCentre, state: StateDep, authority: Manager) -> Adapter:
    """Label the usage of an adapter in reports by cost centre, from the next request on. The label of a
    request's key goes before it; the usage of tenants that share the adapter has their own labels."""
    adapter = await adapters.set_cost_centre(
        state, _name(tenant, name), body.cost_centre, authority=authority
    )
    return adapter_answer(state, adapter, authority)


@controlled.delete("/{tenant}/{name}", response_model_exclude_unset=True)
async def remove_adapter(tenant: str, name: str, state: StateDep, authority: Remover) -> RemovedAdapter:
    """Remove an adapter with all its versions, also from engines. Running requests finish. If it is
    registered again later, its version numbers continue."""
    full_name = _name(tenant, name)
    removed = await adapters.remove(state, full_name, authority=authority)
    return RemovedAdapter(adapter=str(full_name), removed=removed)


async def _details(state: State, adapter: model.Adapter, authority: Authority) -> tuple[VersionDetails, ...]:
    evaluated = await evaluations.latest(state, adapter)
    return tuple(
        VersionDetails.of(version_answer(state, adapter, v, authority), evaluation=evaluated.get(v.number))
        for v in versions_of(state, adapter)
    )


def _version(state: State, name: AdapterName, version: model.Version, authority: Authority) -> AdapterVersion:
    adapter = adapters.find(state, name, authority)
    return AdapterVersion.of(version_answer(state, adapter, version, authority), adapter=str(name))


def _terms(body: NewLive) -> CanaryTerms:
    if "guard" not in body.model_fields_set:
        return CanaryTerms(force=body.force)
    return CanaryTerms(None if body.guard is None else body.guard.guard(), force=body.force)


def _name(tenant: str, name: str) -> AdapterName:
    return AdapterName.parse(f"{tenant}/{name}")
