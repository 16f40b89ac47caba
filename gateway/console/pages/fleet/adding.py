"""New engines: registered by their URL, or by a host that is enrolled with a token."""

from __future__ import annotations

import shlex
from typing import Final

from starlette.responses import Response

from gateway.console.forms import body_of, fields_of
from gateway.console.visit import OPERATORS, Route, Visit
from gateway.fleet.engines.schemas.engines import RegisteredEngine
from gateway.fleet.engines.schemas.hosts import CreatedToken, NewToken
from gateway.fleet.engines.schemas.registration import NewEngine

_LEFT: Final = ("name", "url", "base", "driver", "serves", "slots", "max_rank", "cpu_slots", "seats", "tasks")
_RIGHT: Final = (
    *("gpu_type", "gpu_count", "purchase", "region", "labels", "tenant", "host", "base_config", "trial"),
    "verify",
)
"""The form's columns."""
_TOKEN: Final = ("engine", "expires_in", "base", "gpu_type", "tenant", "address")


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


async def enrol_form(visit: Visit) -> Response:
    return visit.page("fleet_enrol.html.j2", fields=fields_of(NewToken, *_TOKEN), token=None)


async def enrol(visit: Visit) -> Response:
    """The only page that ever shows the token."""
    body = body_of(NewToken, visit.text, *_TOKEN)
    token = await visit.api.post("/admin/v1/enrolment-tokens", body, CreatedToken)
    url = str(visit.request.base_url).rstrip("/")
    return visit.page("fleet_enrol.html.j2", token=token, command=host_command(token, url))


def host_command(token: CreatedToken, url: str) -> str:
    """What to run on the host. The token does not become visible in its process list."""
    name = shlex.quote(token.engine)
    return (
        f"(umask 077; cat > {name}.token <<< {shlex.quote(token.token)}) && "
        f"FLORIN_URL={shlex.quote(url)} florin engine run --name {name} --token-file {name}.token -- "
        "vllm serve MODEL --max-loras 16 --max-cpu-loras 64 --max-lora-rank 32"
    )


ROUTES = (
    Route("/add-engine", add_form, OPERATORS),
    Route("/add-engine", add, OPERATORS, "POST"),
    Route("/enrol-host", enrol_form, OPERATORS),
    Route("/enrol-host", enrol, OPERATORS, "POST"),
)
