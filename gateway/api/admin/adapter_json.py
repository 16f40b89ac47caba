"""An adapter and its versions, as the admin API shows them: all of it to operators, and to a tenant's own
administrator what is the tenant's. Which engines hold a version, and where its files are, is not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Final

from adapters.model import Adapter, ServingStatus, Version
from adapters.sources.public_uri import scheme_of
from gateway.operations.authorization import Authority
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.routing.prewarming import Prewarmed

_OPERATORS_ADAPTER: Final = frozenset({"pinned", "min_replicas", "max_replicas", "placed"})
_OPERATORS_VERSION: Final = frozenset({"path", "trusted", "engine_name", "placed"})
_OPERATORS_EVIDENCE: Final = frozenset({"engine", "process", "first", "base_drift"})
_PUBLIC_SOURCES: Final = frozenset({"upload", "hf"})


def adapter_json(state: State, adapter: Adapter, authority: Authority) -> Json:
    """`versions`: callable versions. `trouble`: those of them that are quarantined or failed. `loaded`:
    whether an engine holds the live version. `base_model`, `rank`, `size_bytes`: those of the live version.
    `canary.held`: why its guard holds its weight. `outcome`: what
    the last canary's guard decided."""
    versions = [v for v in versions_of(state, adapter) if v.retired is None]
    shown = [_version_json(state, adapter, v) for v in versions]
    canary = {
        "version": label(adapter.canary),
        "weight": adapter.weight,
        "guard": asdict(adapter.guard) if adapter.guard else None,
        "held": adapter.outcome.reason if adapter.held and adapter.outcome else None,
    }
    whole = {
        "adapter": adapter.name,
        "live": label(adapter.live),
        "canary": None if adapter.canary is None else canary,
        "outcome": _outcome_json(adapter),
        "previous": label(adapter.previous),
        "history": [label(number) for number in adapter.history],
        "versions": [f"v{v.number}" for v in versions],
        **_of_live(adapter, versions),
        "loaded": any(v["loaded"] for v in shown if v["version"] == label(adapter.live)),
        "pinned": adapter.pinned,
        "min_replicas": adapter.min_replicas,
        "max_replicas": adapter.max_replicas,
        "cost_centre": adapter.cost_centre,
        "require_eval": adapter.require_eval,
        "eval_data": adapter.eval_data or None,
        "placed": [place for v in shown for place in v["placed"]],
        "trouble": [{key: v[key] for key in ("version", "state", "reason")} for v in shown if v["reason"]],
    }
    return whole if authority.tenant is None else _without(whole, _OPERATORS_ADAPTER)


def version_json(state: State, adapter: Adapter, version: Version, authority: Authority) -> Json:
    """`state`: `live`, `canary`, `ready` or `retired`; or what keeps it from being served, with the reason:
    `quarantined` or `failed`."""
    whole = _version_json(state, adapter, version)
    if authority.tenant is None:
        return whole
    return _without(whole, _OPERATORS_VERSION) | {
        "evidence": whole["evidence"] and _without(whole["evidence"], _OPERATORS_EVIDENCE),
        "serving_status": whole["serving_status"] and _without(whole["serving_status"], {"engine"}),
        "source": own_source(version.source),
    }


def warmed_json(warmed: Prewarmed | None, authority: Authority) -> Json:
    """What a promotion has loaded; `resident` is null if nothing was to be loaded."""
    if authority.tenant is None:
        return {
            "resident": list(warmed.engines) if warmed else None,
            "warnings": [warmed.short] if warmed and warmed.short else [],
        }
    fewer = "The version is loaded on fewer engines than the live one was; Florin loads it on more as needed."
    return {"warnings": [fewer] if warmed and warmed.short else []}


def own_source(source: str) -> str:
    """A version's source for its tenant: of sources that may be the operator's, only the kind."""
    kind = scheme_of(source) or "file"
    return source if kind in _PUBLIC_SOURCES or source == "upload" else kind


def versions_of(state: State, adapter: Adapter) -> list[Version]:
    """Oldest first, the retired ones too."""
    return state.catalog.versions_of(adapter.name)


def label(number: int | None) -> str | None:
    return None if number is None else f"v{number}"


def _version_json(state: State, adapter: Adapter, version: Version) -> Json:
    serving_status = state.catalog.serving_statuses.get(version.engine_name)
    placed = _placed(state, version)
    return {
        "version": f"v{version.number}",
        "state": serving_status.state if serving_status else _role(adapter, version),
        "reason": serving_status.reason if serving_status else None,
        "evidence": serving_status.evidence if serving_status else None,
        "serving_status": _serving_status(serving_status) if serving_status else None,
        "digest": version.digest,
        "rank": version.rank,
        "size_bytes": version.size_bytes,
        "base_model": version.base_model,
        "source": version.source,
        "path": version.path,
        "created": version.created,
        "retired": version.retired,
        "trusted": version.trusted,
        "unverified_shapes": version.unverified_shapes,
        "warnings": [asdict(finding) for finding in version.warnings],
        "engine_name": version.engine_name,
        "loaded": any(place["state"] == "resident" for place in placed),
        "placed": placed,
    }


def _of_live(adapter: Adapter, versions: list[Version]) -> Json:
    live = next((v for v in versions if v.number == adapter.live), None)
    return {
        "base_model": live.base_model if live else None,
        "rank": live.rank if live else None,
        "size_bytes": live.size_bytes if live else None,
    }


def _outcome_json(adapter: Adapter) -> Json | None:
    """What the guard of the last canary decided."""
    found = adapter.outcome
    return None if found is None else {**asdict(found), "version": label(found.version)}


def _without(whole: Json, names: Collection[str]) -> Json:
    return {name: value for name, value in whole.items() if name not in names}


def _serving_status(serving_status: ServingStatus) -> Json:
    """What an operator asks next: found by which check, where, since when, and when it is tried again."""
    return {
        "code": serving_status.code,
        "engine": serving_status.engine,
        "since": serving_status.since,
        "attempts": serving_status.attempts,
        "retry": serving_status.retry or None,
    }


def _role(adapter: Adapter, version: Version) -> str:
    if version.retired is not None:
        return "retired"
    if version.number == adapter.live:
        return "live"
    return "canary" if version.number == adapter.canary else "ready"


def _placed(state: State, version: Version) -> list[Json]:
    where = state.residency.where(version.engine_name)
    return [{"engine": e, "state": s, "version": f"v{version.number}"} for e, s in sorted(where.items())]
