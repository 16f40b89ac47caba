"""Liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
import time
from functools import cache
from importlib.metadata import version
from itertools import islice
from typing import Final

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from gateway.api.dependencies import MetricsKey, StateDep
from gateway.installation.schemas import Liveness, Readiness, Release, Serving
from gateway.observability.computed_metrics import LABEL_CAP, Series
from gateway.observability.conditions import Condition
from gateway.observability.metrics import CONTENT_TYPE
from gateway.operations.state import State

router = APIRouter(tags=["health"])

VLLMS_PATHS: Final = frozenset({"/health", "/v1/health", "/ping", "/version"})
"""Routes of a vLLM server that tools ask before anything else. Its `/load` is not among them: a customer
would see how much others send."""


@router.get("/healthz", summary="Liveness: the process is running")
async def healthz() -> Liveness:
    return Liveness(status="ok")


@router.get("/readyz", summary="Readiness of this worker, with its conditions")
async def readyz(state: StateDep, response: Response) -> Readiness:
    """503 only if requests would fail. A load balancer that removed workers for lesser problems would turn a
    degradation into an outage: without Redis, for example, a worker still serves what it knows."""
    conditions, serves = _conditions(state, response)
    return Readiness(
        status="unavailable" if not serves else "degraded" if conditions else "ok",
        redis=state.follower.connected,
        conditions=tuple(dict.fromkeys(condition.code for condition in conditions)),
    )


@router.get("/health", summary="Readiness, at the path that vLLM has")
@router.get("/v1/health", summary="The same, for tools that add it to a base_url")
@router.get("/ping", summary="The same, as Amazon SageMaker asks for it")
async def health(state: StateDep, response: Response) -> Serving:
    """503 only if requests would fail."""
    _, serves = _conditions(state, response)
    return Serving(status="ok" if serves else "unavailable")


@router.get("/version", summary="Florin's release, at the path that vLLM has")
async def release() -> Release:
    return Release(version=_release())


_release = cache(lambda: version("florin-gateway"))


def _conditions(state: State, response: Response) -> tuple[list[Condition], bool]:
    """The worker's conditions, and whether it serves requests in spite of them."""
    state.readiness_queried_at = time.monotonic()
    conditions = state.conditions.now()
    serves = all(condition.meaning.serves for condition in conditions)
    if not serves:
        response.status_code = 503
        response.headers["retry-after"] = "5"
    return conditions, serves


@router.get(
    "/metrics",
    summary="Prometheus metrics. Role metrics or operator, since they name all tenants",
    response_class=PlainTextResponse,
)
async def metrics(state: StateDep, _: MetricsKey) -> Response:
    text = await asyncio.to_thread(state.metrics.render, known(state))
    return Response(text, media_type=CONTENT_TYPE)


def known(state: State) -> dict[str, Series]:
    """The series of AT_SCRAPE. Runs on the event loop, so it stops at LABEL_CAP series per metric."""
    catalog, residency = state.catalog, state.residency
    live = (catalog.versions.get(f"{a.name}@v{a.live}") for a in catalog.adapters.values())
    served = list(islice((v for v in live if v), LABEL_CAP))
    serving_statuses = islice(catalog.serving_statuses.values(), LABEL_CAP)
    engines = state.pool.states()
    healthy = [s for s in engines if s.healthy]
    fleets = state.engine_demand.loads.items()
    changes = residency.churn()
    return {
        "florin_adapter_info": [((v.adapter, v.tenant, v.base_model), 1) for v in served],
        "florin_adapter_holders": [((v.adapter,), len(residency.holders(v.engine_name))) for v in served],
        "florin_serving_status_info": [((v.version or v.engine, v.code), 1) for v in serving_statuses],
        "florin_engine_slots": [((s.engine.name,), s.engine.slots) for s in engines],
        "florin_engine_slots_used": [
            ((s.engine.name,), len(residency.slots(s.engine.name))) for s in engines
        ],
        "florin_engine_running": [((s.engine.name,), s.running) for s in healthy],
        "florin_engine_waiting": [((s.engine.name,), s.waiting) for s in healthy],
        "florin_requests_waiting": [
            ((base,), count) for base, count in islice(state.engine_demand.waiting().items(), LABEL_CAP)
        ],
        "florin_engines_wanted": list(state.engine_demand.wanted().items()),
        "florin_fleet_engines": [((base,), load.engines) for base, load in fleets],
        "florin_placement_changes": [
            (("load",), changes.loads),
            (("eviction",), changes.evictions),
            (("undone",), changes.undone),
        ],
        "florin_fleet_capacity": [((base,), load.capacity) for base, load in fleets],
        "florin_fleet_requests": [((base,), load.requests) for base, load in fleets],
        "florin_fleet_slots": [((base,), load.slots) for base, load in fleets],
        "florin_fleet_adapters": [((base,), load.adapters) for base, load in fleets],
        "florin_fleet_expected_delay_seconds": [((base,), load.delay) for base, load in fleets],
    }
