"""New engines: registered by their URL, or by a host that is enrolled with a token."""

from __future__ import annotations

import shlex
from typing import Any, Final

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.visit import OPERATORS, Route, Visit

_DRIVERS: Final = (
    ("vllm", "vLLM"),
    ("sglang", "SGLang"),
    ("trtllm", "TensorRT-LLM"),
    ("tgi", "TGI"),
    ("lorax", "LoRAX"),
)
_PURCHASES: Final = (("on_demand", "On demand"), ("spot", "Spot"), ("reserved", "Reserved"))
_LIVES: Final = (("1800", "30 minutes"), ("3600", "1 hour"), ("86400", "1 day"), ("604800", "7 days"))


async def add_form(visit: Visit) -> Response:
    return visit.page("fleet_add.html.j2", drivers=_DRIVERS, purchases=_PURCHASES)


async def add(visit: Visit) -> Response:
    done = await visit.api.post("/admin/v1/engines", new_engine(visit))
    note = f"Engine {done['name']} serves {done['base']}."
    if not done["base_config"]:
        note += (
            f" Florin does not have the config.json of {done['base']} and cannot check adapters without it:"
            " register the engine again with the path of that file."
        )
    return visit.see(f"/console/fleet/{done['name']}", note)


def new_engine(visit: Visit) -> dict[str, Any]:
    """The body of POST /admin/v1/engines. Raises ApiError."""
    return {
        "name": visit.text("name"),
        "url": visit.text("url"),
        "base": visit.text("base"),
        "gpu_type": visit.text("gpu_type"),
        "gpu_count": _count(visit, "gpu_count") or 1,
        "region": visit.text("region"),
        "purchase": visit.text("purchase") or "on_demand",
        "driver": visit.text("driver") or "vllm",
        "labels": labels(visit.text("labels")),
        "host": visit.text("host"),
        "slots": _count(visit, "slots"),
        "cpu_slots": _count(visit, "cpu_slots"),
        "max_rank": _count(visit, "max_rank"),
        "seats": _count(visit, "seats"),
        "verify": bool(visit.text("verify")),
        "base_config": visit.text("base_config") or None,
    }


def labels(text: str) -> dict[str, str]:
    """Of lines like `pool=acme`. Raises ApiError."""
    found = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals:
            raise ApiError(400, "invalid_value", f"Labels: {line[:60]!r} is not like pool=acme.", "labels")
        found[name.strip()] = value.strip()
    return found


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
