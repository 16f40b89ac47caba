"""What is set of one adapter: pin, replicas, cost centre, what promotions need; and its removal."""

from __future__ import annotations

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.pages.adapters.common import (
    adapter,
    api_of,
    command,
    confirmed,
    full_name,
    page_of,
    tabs,
    whole,
)
from gateway.console.visit import MANAGERS, OPERATORS, Route, Visit
from gateway.evaluations.schemas import EvalPolicyAnswer
from gateway.fleet.adapters.schemas.adapters import Adapter, RemovedAdapter, ScaledAdapter


async def settings(visit: Visit) -> Response:
    name = full_name(visit)
    return visit.page(
        "adapter_settings.html.j2",
        adapter=await adapter(visit),
        name=name,
        tabs=tabs(visit, name),
        cli=command("adapter", "show", name),
    )


async def pin(visit: Visit) -> Response:
    name, pinned = full_name(visit), visit.text("pinned") == "1"
    await visit.api.put(api_of(name, "pin"), {"pinned": pinned}, Adapter)
    outcome = "is pinned: it is never evicted." if pinned else "is no longer pinned."
    return visit.see(page_of(name, "settings"), f"{name} {outcome}")


async def replicas(visit: Visit) -> Response:
    name = full_name(visit)
    body = {
        "min_replicas": whole(visit.text("min_replicas") or "0", "min_replicas", "At least"),
        "max_replicas": whole(visit.text("max_replicas"), "max_replicas", "At most"),
    }
    done = await visit.api.put(api_of(name, "replicas"), body, ScaledAdapter)
    warned = "".join(f" Warning: {warning}." for warning in done.warnings)
    return visit.see(page_of(name, "settings"), f"The replicas of {name} are changed.{warned}")


async def cost_centre(visit: Visit) -> Response:
    name = full_name(visit)
    body = {"cost_centre": visit.text("cost_centre") or None}
    await visit.api.put(api_of(name, "cost-centre"), body, Adapter)
    return visit.see(
        page_of(name, "settings"), f"The cost centre of {name} is changed, from the next request on."
    )


async def policy(visit: Visit) -> Response:
    name = full_name(visit)
    body = {
        "require_eval": bool(visit.text("require_eval")),
        "data_sha256": visit.text("data_sha256").lower() or None,
    }
    done = await visit.api.put(api_of(name, "evaluation-policy"), body, EvalPolicyAnswer)
    condition = "only after a passing evaluation" if done.require_eval else "without evaluations"
    return visit.see(page_of(name, "settings"), f"{name} is promoted {condition}.")


async def remove(visit: Visit) -> Response:
    name = full_name(visit)
    confirmed(visit, name)
    done = await visit.api.delete(api_of(name), RemovedAdapter)
    if not done.removed:
        raise ApiError(404, "not_found", f"There is no adapter {name}.")
    return visit.see("/console/adapters", f"{name} is removed, with all its versions.")


_ONE = "/adapters/{tenant}/{name}"
ROUTES = (
    Route(f"{_ONE}/settings", settings, MANAGERS),
    Route(f"{_ONE}/pin", pin, OPERATORS, "POST"),
    Route(f"{_ONE}/replicas", replicas, OPERATORS, "POST"),
    Route(f"{_ONE}/cost-centre", cost_centre, MANAGERS, "POST"),
    Route(f"{_ONE}/evaluation-policy", policy, OPERATORS, "POST"),
    Route(f"{_ONE}/remove", remove, MANAGERS, "POST"),
)
