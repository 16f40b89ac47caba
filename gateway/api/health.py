"""Liveness, readiness and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response

from gateway.api.deps import MetricsKey, StateDep
from gateway.errors import FlorinError
from gateway.metrics import CONTENT_TYPE

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="The process lives")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/readyz", summary="This worker can serve: it has heard the registry, and can meter")
async def readyz(state: StateDep) -> dict[str, object]:
    """503 only when requests would fail. A worker without Redis serves what it knows, and says so."""
    if not state.meter.accepting:
        raise FlorinError("metering_unavailable", "Usage cannot be recorded now.", retry_after=5)
    return {"status": "ok" if state.follower.connected else "degraded", "redis": state.follower.connected}


@router.get("/metrics", summary="Prometheus metrics; role metrics or operator, for they name every customer")
def metrics(state: StateDep, _: MetricsKey) -> Response:
    live = (state.catalog.versions.get(f"{a.name}@v{a.live}") for a in state.catalog.adapters.values())
    infos = [(v.adapter, v.tenant, v.base_model) for v in live if v]
    verdicts = [(v.version or v.engine, v.code) for v in state.catalog.verdicts.values()]
    return Response(state.metrics.render(infos, verdicts), media_type=CONTENT_TYPE)
