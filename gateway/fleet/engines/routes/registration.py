"""POST /admin/v1/engines and GET /admin/v1/engines/{name}: registration by operators, and by hosts with their
engine's key."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from adapters.errors import NotFoundError
from gateway.api.admin_requests import Host
from gateway.api.dependencies import HostKey, StateDep
from gateway.fleet.engines.operations.agents import living
from gateway.fleet.engines.operations.registration import register
from gateway.fleet.engines.routes.engines import engine_of
from gateway.fleet.engines.schemas.engines import Engine, RegisteredEngine
from gateway.fleet.engines.schemas.registration import NewEngine
from gateway.operations.authorization import actor_of, check_own_engine
from gateway.tenants.directory import Role

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Host])


@router.post("", status_code=201, response_model_exclude_unset=True)
async def add_engine(
    body: NewEngine, state: StateDep, key: HostKey, request: Request, response: Response
) -> RegisteredEngine:
    """Register an engine (201) or change its registration (200). An agent gets an `agent_token`, with which
    the gateway authenticates to it; it is refused while another agent with the same name is alive. An
    engine's key can only register that engine, from its own host, and cannot change values that were pinned
    at enrolment or fixed by the first registration."""
    check_own_engine(key, body.name)
    own = key if key.role is Role.ENGINE else None
    peer = request.client.host if request.client else None
    done = await register(state, body, actor=actor_of(key), own=own, peer=peer)
    response.status_code = 200 if done.old else 201
    token = {} if done.agent_token is None else {"agent_token": done.agent_token}
    engine = engine_of(state, done.engine, None)
    return RegisteredEngine.of(engine, base_config=done.base.config is not None, **token)


@router.get("/{name}")
async def show_engine(name: str, state: StateDep) -> Engine:
    """An engine with its health and load, as seen by this worker."""
    engine = state.catalog.engines.get(name)
    if engine is None:
        raise NotFoundError(f"There is no engine {name[:80]!r}.")
    return engine_of(state, engine, await living(state))
