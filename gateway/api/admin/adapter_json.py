"""An adapter and its versions, as the admin API shows them."""

from __future__ import annotations

from dataclasses import asdict

from adapters.model import Adapter, ServingStatus, Version
from gateway.operations.state import State
from gateway.operations.transaction import Json


def adapter_json(state: State, adapter: Adapter) -> Json:
    """`versions`: those that can be called. `trouble`: those of them that are quarantined or failed."""
    versions = [v for v in versions_of(state, adapter) if v.retired is None]
    shown = [version_json(state, adapter, v) for v in versions]
    canary = {"version": label(adapter.canary), "weight": adapter.weight}
    return {
        "adapter": adapter.name,
        "live": label(adapter.live),
        "canary": None if adapter.canary is None else canary,
        "previous": label(adapter.previous),
        "history": [label(number) for number in adapter.history],
        "versions": [f"v{v.number}" for v in versions],
        "pinned": adapter.pinned,
        "placed": [place for v in shown for place in v["placed"]],
        "trouble": [{key: v[key] for key in ("version", "state", "reason")} for v in shown if v["reason"]],
    }


def version_json(state: State, adapter: Adapter, version: Version) -> Json:
    """`state`: `live`, `canary`, `ready` or `retired`; or what keeps it from being served, with the reason:
    `quarantined` or `failed`."""
    serving_status = state.catalog.serving_statuses.get(version.engine_name)
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
        "warnings": [asdict(finding) for finding in version.warnings],
        "engine_name": version.engine_name,
        "placed": _placed(state, version),
    }


def versions_of(state: State, adapter: Adapter) -> list[Version]:
    """Oldest first, the retired ones too."""
    return state.catalog.versions_of(adapter.name)


def label(number: int | None) -> str | None:
    return None if number is None else f"v{number}"


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
