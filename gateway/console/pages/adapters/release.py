"""Promote, roll back, retire, release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from gateway.console.api_client import ApiError, Json
from gateway.console.pages.adapters.common import (
    adapter,
    api_of,
    command,
    confirmed,
    decimal,
    full_name,
    page_of,
    tabs,
    whole,
    wrong,
)
from gateway.console.visit import MANAGERS, OPERATORS, Route, Visit
from gateway.fleet.adapters.schemas.adapters import Adapter, AdapterVersion, PromotedAdapter, ReleasedVersion

_GUARDS: Final = [
    ("rollback", "Roll it back"),
    ("hold", "Hold its share"),
    ("none", "Nothing: there is no guard"),
]


def promotion(text: Callable[[str], str]) -> Json:
    """The body of a promotion, from the fields of its form. Raises ApiError. Pure."""
    weight = whole(text("weight") or "100", "weight", "Share of calls") or 0
    if not 1 <= weight <= 100:
        raise wrong("weight", "Share of calls: from 1 to 100 percent.")
    body: Json = {"version": text("version"), "weight": weight, "wait": bool(text("wait"))}
    if text("force"):
        body["force"] = True
    if text("require_eval") or text("require_eval_of"):
        body |= {"require_eval": True, "require_eval_of": text("require_eval_of").lower()}
    action = text("guard")
    if weight == 100:
        return body
    if action in {"", "none"}:
        return body | {"guard": None}
    percent = decimal(text("max_error_percent"), "max_error_rate", "Failures allowed")
    minutes = decimal(text("window_minutes"), "window_seconds", "Time watched")
    terms = {
        "max_error_rate": None if percent is None else round(percent / 100, 6),
        "max_latency_ratio": decimal(text("max_latency_ratio"), "max_latency_ratio", "Slowdown allowed"),
        "min_requests": whole(text("min_requests"), "min_requests", "Requests needed"),
        "window_seconds": None if minutes is None else round(minutes * 60),
        "then": [whole(part, "then", "Then") for part in text("then").replace(",", " ").split()] or None,
    }
    given = {name: value for name, value in terms.items() if value is not None}
    return body | {"guard": {"action": action, **given}}


def switched(body: Adapter) -> str:
    """What a promotion or a rollback did, in a sentence."""
    name, live, canary = body.adapter, body.live, body.canary
    if canary:
        rest = 100 - canary.weight
        share = f"{canary.version} for {canary.weight} % of calls"
        sentence = f"{name} now serves {share}, and {live} for the other {rest} %."
    else:
        sentence = f"{name} now serves {live}."
    warnings = body.warnings if isinstance(body, PromotedAdapter) else ()
    return " ".join([sentence, *(f"Warning: {warning}" for warning in warnings)])


async def promote_page(visit: Visit) -> Response:
    name = full_name(visit)
    details = await adapter(visit)
    canary = details.canary
    able = [v.version for v in reversed(details.version_details) if v.state != "retired"]
    able = [v for v in able if v != details.live]
    chosen = visit.query.get("version") or (canary.version if canary else next(iter(able), ""))
    return visit.page(
        "adapter_promote.html.j2",
        adapter=details,
        name=name,
        able=able,
        chosen=chosen,
        guards=_GUARDS,
        guard=canary.guard if canary else None,
        action="rollback" if canary is None else canary.guard.action if canary.guard else "none",
        tabs=tabs(visit, name),
        cli=command("adapter", "promote", name, chosen or "v2", "--weight", "10", "--guard", "rollback"),
    )


async def promote(visit: Visit) -> Response:
    name = full_name(visit)
    done = await visit.api.put(api_of(name, "live"), promotion(visit.text), PromotedAdapter)
    return visit.see(page_of(name), switched(done))


async def rollback(visit: Visit) -> Response:
    name = full_name(visit)
    done = await visit.api.post(api_of(name, "rollback"), None, Adapter)
    return visit.see(page_of(name), switched(done))


async def retire(visit: Visit) -> Response:
    name, version = full_name(visit), visit.params["version"]
    confirmed(visit, version)
    await visit.api.post(api_of(name, "versions", version, "retire"), None, AdapterVersion)
    return visit.see(page_of(name), f"{name}@{version} is retired.")


async def release(visit: Visit) -> Response:
    name, version = full_name(visit), visit.params["version"]
    confirmed(visit, version)
    done = await visit.api.post(api_of(name, "versions", version, "release"), None, ReleasedVersion)
    if not done.released:
        raise ApiError(409, "invalid_value", f"{name}@{version} was neither quarantined nor failed.")
    return visit.see(page_of(name), f"{name}@{version} is released: the next request loads it.")


_ONE = "/adapters/{tenant}/{name}"
ROUTES = (
    Route(f"{_ONE}/promote", promote_page, MANAGERS),
    Route(f"{_ONE}/promote", promote, MANAGERS, "POST"),
    Route(f"{_ONE}/rollback", rollback, MANAGERS, "POST"),
    Route(f"{_ONE}/versions/{{version}}/retire", retire, MANAGERS, "POST"),
    Route(f"{_ONE}/versions/{{version}}/release", release, OPERATORS, "POST"),
)
