"""What engine hosts call: enrolment, which gives them their own keys, registration (operators register
engines, too), the reports of their agents, and the files that they stage on local disk."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, RedirectResponse

from adapters.errors import NotFoundError
from gateway.api.admin_requests import Host, Operator
from gateway.api.dependencies import Actor, EnrolmentKey, HostKey, StateDep
from gateway.fleet.adapters.operations import artifacts
from gateway.fleet.engines.operations import agents, enrolment
from gateway.fleet.engines.operations.agents import living
from gateway.fleet.engines.operations.registration import register
from gateway.fleet.engines.routes.engines import engine_of
from gateway.fleet.engines.schemas.engines import Engine, RegisteredEngine
from gateway.fleet.engines.schemas.hosts import (
    CreatedToken,
    Enrolment,
    HeartbeatAnswer,
    MergeSource,
    NewHeartbeat,
    NewToken,
    Stopping,
    StoppingAnswer,
)
from gateway.fleet.engines.schemas.registration import NewEngine
from gateway.operations.authorization import READER, actor_of, check_own_engine
from gateway.tenants.directory import Role
from gateway.tenants.keys.routes import key_as
from gateway.tenants.keys.schemas import Key

router = APIRouter(prefix="/engines", tags=["engines"], dependencies=[Host])
enrolments = APIRouter(tags=["engines"])
files = APIRouter(prefix="/artifacts", tags=["engines"], dependencies=[Host])


@enrolments.post(
    "/enrolment-tokens", status_code=201, dependencies=[Operator], response_model_exclude_unset=True
)
async def create_token(body: NewToken, state: StateDep, actor: Actor) -> CreatedToken:
    """Create an enrolment token, which only this response contains. It replaces an unused token for the same
    engine; existing keys stay valid until it is used."""
    token, text = await enrolment.create_token(state, body, actor=actor)
    return key_as(CreatedToken, token, READER, token=text)


@enrolments.post("/enrol", status_code=201, response_model_exclude_unset=True)
async def enrol(body: Enrolment, state: StateDep, token: EnrolmentKey) -> Key:
    """Exchange an enrolment token, sent instead of a key, for the host's key. The engine's earlier keys are
    revoked; its requests continue."""
    digest = body.secret.removeprefix("sha256:")
    return key_as(Key, await enrolment.enrol(state, token, engine=body.engine, digest=digest), READER)


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


@router.get("/{name}/merge")
async def merge_source(name: str, version: str, state: StateDep, key: HostKey) -> MergeSource:
    """What `florin engine run --merge` needs of the version, `acme/support@v3`, to merge it into its base
    model. An engine's key gets only the version that it is pinned to."""
    check_own_engine(key, name)
    return MergeSource.of(artifacts.to_merge(state, key, version), version=version)


@router.put("/{name}/heartbeat")
async def heartbeat(name: str, body: NewHeartbeat, state: StateDep, key: HostKey) -> HeartbeatAnswer:
    """Report that an engine is alive. `known` is false if this epoch is not registered, or was registered
    with another key; the agent then registers the engine again."""
    report = body.model_dump(exclude={"leaving"})
    known = await agents.record_heartbeat(state, name, report, key=key, leaving=body.leaving)
    return HeartbeatAnswer(known=known)


@router.put("/{name}/stopping")
async def stop_engine(name: str, body: Stopping, state: StateDep, key: HostKey) -> StoppingAnswer:
    """Report that an engine is about to stop. Its adapters are loaded elsewhere first, for half of `seconds`
    at most; then it gets no new requests until its next epoch, and `moved` is true. Repeat the call to
    follow. Its state (cordoned, draining) is kept."""
    engine = await agents.stop(state, name, epoch=body.epoch, seconds=body.seconds, actor=actor_of(key))
    return StoppingAnswer(name=name, stopping=engine.stopping, moved=not engine.moving)


@files.get(
    "/{digest}/{file}",
    response_class=FileResponse,
    responses={
        200: {"content": {"application/octet-stream": {}}},
        307: {"description": "The file is in a bucket, at the signed URL in `location`."},
    },
)
async def get_artifact(digest: str, file: str, state: StateDep, key: HostKey, request: Request) -> Response:
    """One of the two files of the version with the digest `sha256:<digest>`, or a range of it. An engine's
    key only gets the files of versions placed on its engine; for others the response is the same as for
    unknown ones. It gets them only from the address of the engine's URL, which may be a name. With
    FLORIN_ARTIFACT_BUCKET the response is a redirect (307) to a URL of the bucket, valid for ten minutes."""
    peer = request.client.host if request.client else None
    place = await artifacts.find(state, key, digest, file, peer)
    if isinstance(place, str):
        return RedirectResponse(place, headers={"cache-control": "no-store"})
    return FileResponse(place, media_type="application/octet-stream", headers={"etag": f'"{digest}"'})
