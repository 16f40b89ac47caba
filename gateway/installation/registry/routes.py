"""/admin/v1/registry: compares the registry in Redis with the workers' snapshot, and carries out the
operator's decision after a loss."""

from __future__ import annotations

from fastapi import APIRouter

from adapters.store import continuity
from gateway.api.dependencies import Actor, OperatorKey, StateDep
from gateway.installation.registry import operations as registry
from gateway.installation.registry.operations import RegistryComparison
from gateway.installation.schemas import Ids, Registry, RegistryDecision, RegistryDifference

router = APIRouter(prefix="/registry", tags=["registry"])

_SHOWN = 10
"""Maximum ids shown of each kind."""


@router.get("", response_model_exclude_unset=True)
async def show_registry(state: StateDep, _: OperatorKey) -> Registry:
    """Compare this gateway's snapshot with Redis."""
    return _answer(await registry.compare(state))


@router.post("/rewrite", response_model_exclude_unset=True)
async def rewrite(body: RegistryDecision, state: StateDep, _: OperatorKey, actor: Actor) -> Registry:
    """Replace the registry in Redis with this gateway's snapshot."""
    return _answer(await registry.decide(state, "registry.rewrite", agreed=body.found, actor=actor))


@router.post("/accept", response_model_exclude_unset=True)
async def accept(body: RegistryDecision, state: StateDep, _: OperatorKey, actor: Actor) -> Registry:
    """Continue with the registry in Redis, and drop what only this gateway's snapshot has."""
    return _answer(await registry.decide(state, "registry.accept", agreed=body.found, actor=actor))


def _answer(compared: RegistryComparison) -> Registry:
    by_kind = continuity.differences(compared.known.documents, compared.left.documents)
    return Registry(
        status="regressed" if compared.lost else "ok",
        reason=compared.lost,
        installation=compared.known.position.installation,
        known=_counts(compared.known.documents),
        left=_counts(compared.left.documents),
        differences={kind: _difference(difference) for kind, difference in by_kind.items()},
        found=compared.state_found,
    )


def _counts(documents: dict[str, dict[str, str]]) -> dict[str, int]:
    return {kind: len(documents.get(kind, {})) for kind in ("tenant", "key", "adapter", "version", "engine")}


def _difference(difference: continuity.RegistryDifference) -> RegistryDifference:
    ids = {name: getattr(difference, name) for name in RegistryDifference.model_fields}
    shown = {name: Ids(count=len(some), first=some[:_SHOWN]) for name, some in ids.items() if some}
    return RegistryDifference.model_validate(shown)
