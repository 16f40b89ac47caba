"""/admin/v1/adapters: lists adapters, and manages their versions after registration."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import APIRouter, Query, Response
from pydantic import Field, StringConstraints, model_validator

from adapters.model import Adapter, AdapterName, Version
from adapters.registry.changes.live_version import CanaryTerms
from gateway.api.admin.adapter_filter import AdapterFilter
from gateway.api.admin.adapter_json import adapter_json, version_json, versions_of, warmed_json
from gateway.api.admin.common import Managed, Operator, listed
from gateway.api.dependencies import Actor, Manager, StateDep
from gateway.operations import adapters, canaries, evaluations
from gateway.operations.authorization import Authority
from gateway.operations.state import State
from gateway.operations.terms import CostCentre
from gateway.operations.transaction import Json
from gateway.schemas.base import GuardSpec, Replicas, StrictBody, check_replicas

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Managed])

VersionName = Annotated[str, StringConstraints(pattern=r"^v[1-9][0-9]{0,8}$")]


class NewLive(StrictBody):
    version: VersionName = Field(examples=["v2"])
    weight: int = Field(
        100, ge=1, le=100, description="Percentage of calls. Below 100, the version becomes a canary."
    )
    wait: bool = Field(True, description="Load the version first; if no engine can hold it, change nothing.")
    require_eval: bool = Field(False, description="Refuse unless the version has passed its last evaluation.")
    require_eval_of: str = Field(
        "", pattern="^([0-9a-f]{64})?$", description="The same, of the data with this SHA-256."
    )
    guard: GuardSpec | None = Field(
        None,
        description="What watches the canary. Null: nothing. Omitted: what watches the same canary already.",
    )
    force: bool = Field(
        False, description="Change a weight that the canary's guard holds. This ends the hold."
    )

    @model_validator(mode="after")
    def _guards_a_canary(self) -> Self:
        if self.guard is not None and self.weight == 100:
            raise ValueError("only a canary has a guard: its weight is below 100")
        return self

    @property
    def terms(self) -> CanaryTerms:
        if "guard" not in self.model_fields_set:
            return CanaryTerms(force=self.force)
        return CanaryTerms(None if self.guard is None else self.guard.guard(), force=self.force)


class NewPin(StrictBody):
    pinned: bool


class NewCostCentre(StrictBody):
    cost_centre: CostCentre | None = Field(
        description="Label of its tenant's usage of it, where the key has none; null: none.",
        examples=["R&D"],
    )


class NewReplicas(StrictBody):
    min_replicas: Replicas = Field(
        0,
        description="Minimum number of engines that hold the live version, even if it is not called. "
        "Omitted: unchanged.",
    )
    max_replicas: Replicas | None = Field(
        None,
        description="Most engines that hold one version; null: no limit. Omitted: unchanged.",
        examples=[4],
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        check_replicas(self.min_replicas, self.max_replicas)
        return self


@router.get("", response_model=None)
async def list_adapters(
    state: StateDep, authority: Manager, chosen: Annotated[AdapterFilter, Query()]
) -> Response:
    """The adapters that the key may see, by name; those that meet all of the given conditions. A key of role
    `tenant-admin` sees its own tenant's, without the fields that describe the fleet."""
    visible = [a for name, a in sorted(state.catalog.adapters.items()) if authority.sees(name)]
    return await listed(visible, lambda adapter: adapter_json(state, adapter, authority), chosen.matches)


@router.get("/{tenant}/{name}")
async def show_adapter(tenant: str, name: str, state: StateDep, authority: Manager) -> Json:
    """One adapter, with its versions in `version_details`. `comparison`: how the canary and the live version
    answered in the last window, requests, errors and latencies in seconds, with the guard's verdict
    (`waiting`, `keep`, `hold`, `rollback`, `promote`); null without a canary, or while Redis is
    unavailable."""
    adapter = adapters.find(state, _name(tenant, name), authority)
    details = await _details(state, adapter, authority)
    comparison = await canaries.comparison_json(state, adapter)
    shown = adapter_json(state, adapter, authority)
    return {**shown, "version_details": details, "comparison": comparison}


@router.get("/{tenant}/{name}/versions")
async def list_versions(tenant: str, name: str, state: StateDep, authority: Manager) -> Json:
    """An adapter's versions with their states, problems and last evaluations."""
    return {"data": await _details(state, adapters.find(state, _name(tenant, name), authority), authority)}


@router.put("/{tenant}/{name}/live")
async def promote(tenant: str, name: str, body: NewLive, state: StateDep, authority: Manager) -> Json:
    """Make a version live, or a canary that gets `weight` percent of calls. It is loaded first, on as many
    engines as hold the live version (for a canary, in proportion to its weight). A refusal changes
    nothing."""
    adapter, warmed = await adapters.promote(
        state,
        _name(tenant, name),
        int(body.version[1:]),
        weight=body.weight,
        terms=body.terms,
        wait=body.wait,
        require_eval=body.require_eval or bool(body.require_eval_of),
        require_eval_of=body.require_eval_of,
        authority=authority,
    )
    return adapter_json(state, adapter, authority) | warmed_json(warmed, authority)


@router.post("/{tenant}/{name}/rollback")
async def rollback(tenant: str, name: str, state: StateDep, authority: Manager) -> Json:
    """End the canary; without one, restore the previous live version, one step further back each time. Takes
    effect at once; the version is loaded afterwards if it is not resident."""
    adapter = await adapters.rollback(state, _name(tenant, name), authority=authority)
    return adapter_json(state, adapter, authority)


@router.post("/{tenant}/{name}/versions/{version}/retire")
async def retire(tenant: str, name: str, version: VersionName, state: StateDep, authority: Manager) -> Json:
    """Retire a version that is neither live nor canary: it can no longer be called. Running requests finish;
    its files are deleted once no engine can hold them."""
    full_name = _name(tenant, name)
    retired = await adapters.retire(state, full_name, int(version[1:]), authority=authority)
    return _version_json(state, full_name, retired, authority)


@router.post("/{tenant}/{name}/versions/{version}/release", dependencies=[Operator])
async def release(tenant: str, name: str, version: VersionName, state: StateDep, actor: Actor) -> Json:
    """Serve a version that is quarantined or failed. A quarantined version may then answer like the base
    model; its answers after the next load become its new reference. Changes nothing if the version is served
    already."""
    full_name = _name(tenant, name)
    released, changed = await adapters.release(state, full_name, version, actor=actor)
    shown = _version_json(state, full_name, released, Authority(actor))
    return {"adapter": str(full_name), "released": changed, **shown}


@router.put("/{tenant}/{name}/pin", dependencies=[Operator])
async def pin(tenant: str, name: str, body: NewPin, state: StateDep, actor: Actor) -> Json:
    """Pin or unpin an adapter. While it is pinned, its live and canary versions are never evicted."""
    adapter = await adapters.pin(state, _name(tenant, name), pinned=body.pinned, actor=actor)
    return adapter_json(state, adapter, Authority(actor))


@router.put("/{tenant}/{name}/replicas", dependencies=[Operator])
async def scale(tenant: str, name: str, body: NewReplicas, state: StateDep, actor: Actor) -> Json:
    """Bound the number of engines that hold an adapter. Between the bounds, Florin follows the demand.
    `warnings`: what keeps the minimum from being reached."""
    bounds = body.model_dump(exclude_unset=True)
    adapter = await adapters.scale(state, _name(tenant, name), bounds, actor=actor)
    warnings = adapters.unreachable(state, adapter)
    return adapter_json(state, adapter, Authority(actor)) | {"warnings": warnings}


@router.put("/{tenant}/{name}/cost-centre")
async def label(tenant: str, name: str, body: NewCostCentre, state: StateDep, authority: Manager) -> Json:
    """Label the usage of an adapter in reports by cost centre, from the next request on. The label of a
    request's key goes before it; the usage of tenants that share the adapter has their own labels."""
    adapter = await adapters.set_cost_centre(
        state, _name(tenant, name), body.cost_centre, authority=authority
    )
    return adapter_json(state, adapter, authority)


@router.delete("/{tenant}/{name}")
async def remove_adapter(tenant: str, name: str, state: StateDep, authority: Manager) -> Json:
    """Remove an adapter with all its versions, also from engines. Running requests finish. If it is
    registered again later, its version numbers continue."""
    full_name = _name(tenant, name)
    removed = await adapters.remove(state, full_name, authority=authority)
    return {"adapter": str(full_name), "removed": removed}


async def _details(state: State, adapter: Adapter, authority: Authority) -> list[Json]:
    known = await evaluations.latest(state, adapter)
    return [
        {**version_json(state, adapter, v, authority), "evaluation": known.get(v.number)}
        for v in versions_of(state, adapter)
    ]


def _version_json(state: State, name: AdapterName, version: Version, authority: Authority) -> Json:
    adapter = adapters.find(state, name, authority)
    return {"adapter": str(name), **version_json(state, adapter, version, authority)}


def _name(tenant: str, name: str) -> AdapterName:
    return AdapterName.parse(f"{tenant}/{name}")
