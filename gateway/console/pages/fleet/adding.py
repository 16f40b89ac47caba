"""New engines: registered by their URL, or by a host that is enrolled with a token."""

from __future__ import annotations

import shlex
from typing import Any, Final

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.forms import body_of, fields_of
from gateway.console.visit import OPERATORS, Route, Visit
from gateway.schemas.engine_registration import NewEngine
from gateway.schemas.engines import RegisteredEngine

_LIVES: Final = (("1800", "30 minutes"), ("3600", "1 hour"), ("86400", "1 day"), ("604800", "7 days"))


_LEFT: Final = ("name", "url", "base", "driver", "slots", "max_rank", "cpu_slots", "seats", "tasks")
_RIGHT: Final = ("gpu_type", "gpu_count", "purchase", "region", "labels", "host", "base_config", "verify")
"""The form's columns."""


async def add_form(visit: Visit) -> Response:
    columns = fields_of(NewEngine, *_LEFT), fields_of(NewEngine, *_RIGHT)
    return visit.page("fleet_add.html.j2", columns=columns)


async def add(visit: Visit) -> Response:
    body = body_of(NewEngine, visit.text, *_LEFT, *_RIGHT)
    engine = await visit.api.post("/admin/v1/engines", body, RegisteredEngine)
    note = f"Engine {engine.name} serves {engine.base}."
    if not engine.base_config:
        note += (
            f" Florin does not have the config.json of {engine.base} and cannot check adapters without it:"
            " register the engine again with the path of that file."
        )
    return visit.see(f"/console/fleet/{engine.name}", note)


def _count(visit: Visit, name: str) -> int | None:
    """None: left empty. Raises ApiError."""
    text = visit.text(name)
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ApiError(400, "invalid_value", f"{name}: {text[:40]!r} is not a whole number.", name)
    return int(text) if text else None


async def enrol_form(visit: Visit) -> Response:
    return visit.page("fleet_enrol.html.j2", lives=_LIVES, token=None)


async def enrol(visit: Visit) -> Response:
    """The only page that ever shows the token."""
    body = {
        "engine": visit.text("engine"),
        "expires_in": _count(visit, "expires_in") or 3600,
        **{name: visit.text(name) or None for name in ("base", "gpu_type", "address")},
    }
    token = await visit.api.post("/admin/v1/enrolment-tokens", body)
    url = str(visit.request.base_url).rstrip("/")
    return visit.page("fleet_enrol.html.j2", lives=_LIVES, token=token, command=host_command(token, url))


def host_command(token: dict[str, Any], url: str) -> str:
    """What to run on the host. The token does not become visible in its process list."""
    name = shlex.quote(token["engine"])
    return (
        f"(umask 077; cat > {name}.token <<< {shlex.quote(token['token'])}) && "
        f"FLORIN_URL={shlex.quote(url)} florin engine run --name {name} --token-file {name}.token -- "
        "vllm serve MODEL --max-loras 16 --max-cpu-loras 64 --max-lora-rank 32"
    )


ROUTES = (
    Route("/add-engine", add_form, OPERATORS),
    Route("/add-engine", add, OPERATORS, "POST"),
    Route("/enrol-host", enrol_form, OPERATORS),
    Route("/enrol-host", enrol, OPERATORS, "POST"),
)
