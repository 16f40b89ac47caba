"""An adapter and its versions, as the admin API shows them: all of it to operators, and to a tenant's own
administrator what is the tenant's. Which engines hold a version, and where its files are, is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from adapters import model
from adapters.sources.public_uri import scheme_of
from gateway.fleet.adapters.schemas.adapters import (
    Adapter,
    Canary,
    Finding,
    GuardOutcome,
    Place,
    Problem,
    ServingStatus,
    Version,
    VersionState,
)
from gateway.operations.authorization import Authority
from gateway.operations.state import State
from gateway.routing.prewarming import Prewarmed
from gateway.schemas.base import GuardSpec

_OPERATORS_EVIDENCE: Final = frozenset({"engine", "process", "first", "base_drift"})
_PUBLIC_SOURCES: Final = frozenset({"upload", "hf"})


def adapter_answer(state: State, adapter: model.Adapter, authority: Authority) -> Adapter:
    versions = [v for v in versions_of(state, adapter) if v.retired is None]
    live = next((v for v in versions if v.number == adapter.live), None)
    places = {v.number: _places(state, v) for v in versions}
    statuses = {v.number: state.catalog.serving_statuses.get(v.engine_name) for v in versions}
    answer = Adapter(
        adapter=adapter.name,
        live=label(adapter.live),
        canary=_canary(adapter),
        outcome=_outcome(adapter),
        previous=label(adapter.previous),
        history=tuple(f"v{number}" for number in adapter.history),
        versions=tuple(f"v{v.number}" for v in versions),
        base_model=live.base_model if live else None,
        rank=live.rank if live else None,
        size_bytes=live.size_bytes if live else None,
        loaded=_loaded(places.get(adapter.live or 0, ())),
        cost_centre=adapter.cost_centre,
        require_eval=adapter.require_eval,
        eval_data=adapter.eval_data or None,
        trouble=tuple(
            Problem(version=f"v{number}", state=status.state, reason=status.reason)
            for number, status in statuses.items()
            if status is not None and status.reason
        ),
    )
    if authority.tenant is not None:
        return answer
    return Adapter.of(
        answer,
        pinned=adapter.pinned,
        min_replicas=adapter.min_replicas,
        max_replicas=adapter.max_replicas,
        placed=tuple(place for of_version in places.values() for place in of_version),
    )


def version_answer(
    state: State, adapter: model.Adapter, version: model.Version, authority: Authority
) -> Version:
    status = state.catalog.serving_statuses.get(version.engine_name)
    places, operator = _places(state, version), authority.tenant is None
    evidence = status.evidence if status else None
    return Version(
        version=f"v{version.number}",
        state=status.state if status else _role(adapter, version),
        reason=status.reason if status else None,
        evidence=evidence if operator or evidence is None else _tenants_evidence(evidence),
        serving_status=_serving_status(status, operator=operator) if status else None,
        digest=version.digest,
        rank=version.rank,
        size_bytes=version.size_bytes,
        base_model=version.base_model,
        source=version.source if operator else own_source(version.source),
        created=version.created,
        retired=version.retired,
        unverified_shapes=version.unverified_shapes,
        min_vllm=version.min_vllm,
        warnings=tuple(map(Finding.model_validate, version.warnings)),
        loaded=_loaded(places),
        **_operators(version, places) if operator else {},
    )


def warmed(promoted: Prewarmed | None, authority: Authority) -> dict[str, Any]:
    """What a promotion has loaded, as fields of its answer."""
    if authority.tenant is None:
        return {
            "resident": promoted.engines if promoted else None,
            "warnings": (promoted.short,) if promoted and promoted.short else (),
        }
    fewer = "The version is loaded on fewer engines than the live one was; Florin loads it on more as needed."
    return {"warnings": (fewer,) if promoted and promoted.short else ()}


def own_source(source: str) -> str:
    """A version's source for its tenant: of sources that may be the operator's, only the kind."""
    kind = scheme_of(source) or "file"
    return source if kind in _PUBLIC_SOURCES or source == "upload" else kind


def versions_of(state: State, adapter: model.Adapter) -> list[model.Version]:
    """Oldest first, the retired ones too."""
    return state.catalog.versions_of(adapter.name)


def label(number: int | None) -> str | None:
    return None if number is None else f"v{number}"


def _operators(version: model.Version, places: tuple[Place, ...]) -> dict[str, Any]:
    return {
        "path": version.path,
        "trusted": version.trusted,
        "engine_name": version.engine_name,
        "placed": places,
    }


def _canary(adapter: model.Adapter) -> Canary | None:
    if adapter.canary is None:
        return None
    return Canary(
        version=f"v{adapter.canary}",
        weight=adapter.weight,
        guard=GuardSpec.of(adapter.guard) if adapter.guard else None,
        held=adapter.outcome.reason if adapter.held and adapter.outcome else None,
    )


def _outcome(adapter: model.Adapter) -> GuardOutcome | None:
    outcome = adapter.outcome
    return (
        None
        if outcome is None
        else GuardOutcome.of(outcome, version=f"v{outcome.version}", decided_at=outcome.at)
    )


def _tenants_evidence(evidence: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in evidence.items() if name not in _OPERATORS_EVIDENCE}


def _serving_status(status: model.ServingStatus, *, operator: bool) -> ServingStatus:
    """What an operator asks next: found by which check, where, since when, and when it is tried again."""
    engine = {"engine": status.engine} if operator else {}
    return ServingStatus(
        code=status.code, since=status.since, attempts=status.attempts, retry=status.retry or None, **engine
    )


def _role(adapter: model.Adapter, version: model.Version) -> VersionState:
    if version.retired is not None:
        return "retired"
    if version.number == adapter.live:
        return "live"
    return "canary" if version.number == adapter.canary else "ready"


def _loaded(places: tuple[Place, ...]) -> bool:
    return any(place.state == "resident" for place in places)


def _places(state: State, version: model.Version) -> tuple[Place, ...]:
    where = state.residency.where(version.engine_name)
    return tuple(
        Place(engine=engine, state=slot, version=f"v{version.number}")
        for engine, slot in sorted(where.items())
    )
