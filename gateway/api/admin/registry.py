"""/admin/v1/registry: compares the registry in Redis with the workers' snapshot, and carries out the
operator's decision after a loss."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from adapters.store.continuity import RegistryDifference, differences
from gateway.api.dependencies import Actor, OperatorKey, StateDep
from gateway.operations import registry
from gateway.operations.registry import RegistryComparison
from gateway.operations.transaction import Json
from gateway.schemas.base import StrictBody

router = APIRouter(prefix="/registry", tags=["registry"])

_SHOWN = 10
"""Maximum ids shown of each kind."""


class RegistryDecision(StrictBody):
    found: str = Field(
        max_length=256,
        description="`found` from the comparison. 409 if the registry in Redis has changed since.",
    )


@router.get("")
async def show_registry(state: StateDep, _: OperatorKey) -> Json:
    """Compare this gateway's snapshot with Redis. `restore` would bring back `missing` and `changed` objects
    and drop `added` ones."""
    return _json(await registry.compare(state))


@router.post("/restore")
async def restore(body: RegistryDecision, state: StateDep, _: OperatorKey, actor: Actor) -> Json:
    """Replace the registry in Redis with this gateway's snapshot."""
    return _json(await registry.decide(state, "registry.restore", agreed=body.found, actor=actor))


@router.post("/accept")
async def accept(body: RegistryDecision, state: StateDep, _: OperatorKey, actor: Actor) -> Json:
    """Continue with the registry in Redis, and drop what only this gateway's snapshot has."""
    return _json(await registry.decide(state, "registry.accept", agreed=body.found, actor=actor))


def _json(compared: RegistryComparison) -> Json:
    told = differences(compared.known.documents, compared.left.documents)
    return {
        "status": "regressed" if compared.lost else "ok",
        "reason": compared.lost,
        "installation": compared.known.position.installation,
        "known": _counts(compared.known.documents),
        "left": _counts(compared.left.documents),
        "differences": {kind: _difference(one) for kind, one in told.items()},
        "found": compared.state_found,
    }


def _counts(documents: dict[str, dict[str, str]]) -> dict[str, int]:
    return {kind: len(documents.get(kind, {})) for kind in ("tenant", "key", "adapter", "version", "engine")}


def _difference(one: RegistryDifference) -> Json:
    return {
        what: {"count": len(ids), "first": ids[:_SHOWN]}
        for what, ids in (("missing", one.missing), ("changed", one.changed), ("added", one.added))
        if ids
    }
