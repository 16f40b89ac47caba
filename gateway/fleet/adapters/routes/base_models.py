"""GET /admin/v1/bases: the base models, and the configuration that adapters are checked against."""

from __future__ import annotations

from fastapi import APIRouter

from adapters import model
from gateway.api.admin_requests import Managed
from gateway.api.dependencies import Manager, StateDep
from gateway.fleet.engines.schemas.engines import ServedBase
from gateway.operations.state import State
from gateway.schemas.base import Listed

router = APIRouter(prefix="/bases", tags=["engines"], dependencies=[Managed])


@router.get("", response_model_exclude_unset=True)
async def list_bases(state: StateDep, authority: Manager) -> Listed[ServedBase]:
    """The base models."""
    operator = authority.tenant is None
    bases = [base for _, base in sorted(state.catalog.bases.items())]
    return Listed(data=tuple(_served(state, base, operator=operator) for base in bases))


def _served(state: State, base: model.BaseModel, *, operator: bool) -> ServedBase:
    fleet = state.catalog.fleet(base.name)
    more = {"engines": sorted(engine.name for engine in fleet)} if operator else {}
    return ServedBase.of(
        base,
        base_model=base.name,
        aliases=base.aliases if operator else base.public_aliases,
        ranks=sorted({engine.max_rank for engine in fleet}),
        **more,
    )
