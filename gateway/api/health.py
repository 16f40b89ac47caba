"""Liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter, Response

from gateway.api.deps import MetricsKey, StateDep
from gateway.api.scrape import known
from gateway.metrics import CONTENT_TYPE

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="The process lives")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/readyz", summary="This worker can serve, and what is wrong with it all the same")
async def readyz(state: StateDep, response: Response) -> dict[str, object]:
    """503 only when requests would fail: a balancer that took a worker away for less would finish an outage
    that had only begun. A worker without Redis serves what it knows, and says so."""
    state.readiness_asked = time.monotonic()
    found = state.conditions.now()
    serves = all(condition.meaning.serves for condition in found)
    if not serves:
        response.status_code = 503
        response.headers["retry-after"] = "5"
    return {
        "status": "unavailable" if not serves else "degraded" if found else "ok",
        "redis": state.follower.connected,
        "conditions": list(dict.fromkeys(condition.code for condition in found)),
    }


@router.get("/metrics", summary="Prometheus metrics; role metrics or operator, for they name every customer")
async def metrics(state: StateDep, _: MetricsKey) -> Response:
    text = await asyncio.to_thread(state.metrics.render, known(state))
    return Response(text, media_type=CONTENT_TYPE)
