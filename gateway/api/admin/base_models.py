"""GET /admin/v1/bases: the base models, and what adapters for them are checked against."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.admin.common import Operator
from gateway.api.dependencies import StateDep
from gateway.operations.transaction import Json

router = APIRouter(prefix="/bases", tags=["engines"], dependencies=[Operator])


@router.get("")
async def list_bases(state: StateDep) -> Json:
    """`config`: its config.json, null where no engine brought it. `chat_template`: its SHA-256, empty when it
    has none, null when unknown. `ranks`: what its engines take, each once."""
    data = [
        {
            "base_model": base.name,
            "aliases": base.aliases,
            "config": base.config,
            "chat_template": base.chat_template,
            "engines": sorted(engine.name for engine in state.catalog.fleet(base.name)),
            "ranks": sorted({engine.max_rank for engine in state.catalog.fleet(base.name)}),
        }
        for _, base in sorted(state.catalog.bases.items())
    ]
    return {"data": data}
