"""GET /admin/v1/bases: the base models, and the configuration that adapters are checked against."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin.common import Managed
from gateway.api.dependencies import Manager, StateDep
from gateway.operations.transaction import Json

router = APIRouter(prefix="/bases", tags=["engines"], dependencies=[Managed])


@router.get("")
async def list_bases(state: StateDep, authority: Manager) -> Json:
    """The base models. `config` is the model's config.json, null if unknown. `chat_template` is the
    template's SHA-256, empty if the model has none, null if unknown. `ranks` are the distinct maximum ranks
    of its engines. Only operators see the `engines`, and `aliases` that are paths."""
    names = authority.tenant is None
    data = [
        {
            "base_model": base.name,
            "aliases": base.aliases if names else base.public_aliases,
            "config": base.config,
            "chat_template": base.chat_template,
            "ranks": sorted({engine.max_rank for engine in state.catalog.fleet(base.name)}),
        }
        | ({"engines": sorted(e.name for e in state.catalog.fleet(base.name))} if names else {})
        for _, base in sorted(state.catalog.bases.items())
    ]
    return {"data": data}
