"""Register an adapter, or a new version of one: from a source, or from files of the visitor's machine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.forms import body_of
from gateway.console.pages.adapters.common import command, page_of, wrong
from gateway.console.visit import MANAGERS, Route, Visit
from gateway.dataplane.asgi import Message, Receive
from gateway.fleet.adapters.schemas.adapters import NewAdapter, RegisteredVersion
from gateway.fleet.engines.schemas.engines import ServedBase
from gateway.schemas.base import Listed, Named
from gateway.tenants.directory import Role

_MOST_DRAINED: Final = 64 * 1024 * 1024
"""Bytes of a refused upload that are still read: a browser that cannot send does not read the refusal."""
_DRAIN_SECONDS: Final = 20.0
_UPLOADED: Final = ("base_model", "assume_base", "unverified_shapes", "digest")
"""What is said of an upload besides its name."""


async def new(visit: Visit) -> Response:
    operator = visit.role is Role.OPERATOR
    names, bases = await asyncio.gather(_tenants(visit), visit.api.get("/admin/v1/bases", Listed[ServedBase]))
    asked_tenant, _, asked_name = visit.query.get("adapter", "").partition("/")
    return visit.page(
        "adapter_new.html.j2",
        tenants=names,
        tenant=asked_tenant,
        adapter_name=asked_name,
        bases=[("", "The one that it names"), *((b.base_model, b.base_model) for b in bases.data)],
        operator=operator,
        upload=visit.query.get("from", "") != "source",
        cli=command("adapter", "add", visit.query.get("adapter") or "TENANT/NAME", "--upload", "DIR"),
        cli_source=command(
            "adapter", "add", visit.query.get("adapter") or "TENANT/NAME", "--source", "hf://…"
        ),
    )


async def _tenants(visit: Visit) -> list[str | None]:
    """Those that the visitor registers adapters for."""
    if visit.role is not Role.OPERATOR:
        return [visit.tenant]
    return [tenant.name for tenant in (await visit.api.get("/admin/v1/tenants", Listed[Named])).data]


async def from_source(visit: Visit) -> Response:
    name = _name(visit.text("tenant"), visit.text("name"))
    body = body_of(NewAdapter, visit.text) | {"adapter": name}
    if not body["source"]:
        raise wrong("source", "Source: say where its files are.")
    done = await visit.api.post("/admin/v1/adapters", body, RegisteredVersion)
    if done.warnings:
        return visit.page("adapter_registered.html.j2", done=done, said=registered(done))
    return visit.see(page_of(name), registered(done))


async def upload(visit: Visit) -> Response:
    """The body goes on to the API as it comes: a file, or a form with one."""
    headers = [
        (name, value)
        for name, value in visit.request.scope["headers"]
        if name in {b"content-type", b"content-length", b"transfer-encoding"}
    ]
    query = body_of(NewAdapter, lambda name: visit.query.get(name, ""), *_UPLOADED)
    query["file_name"] = visit.query.get("file_name")
    body = _Body(visit.request.receive)
    try:
        name = _name(visit.query.get("tenant", ""), visit.query.get("name", ""))
        answer = await visit.api.stream(
            "POST",
            "/admin/v1/adapters/upload",
            body.receive,
            headers,
            query=query | {"adapter": name},
        )
    except ApiError:
        await body.drain()
        raise
    done = RegisteredVersion.model_validate_json(answer.body)
    return visit.page("adapter_registered_part.html.j2", done=done, said=registered(done))


def _name(tenant: str, name: str) -> str:
    """The full name. Raises ApiError."""
    tenant, name = tenant.strip(), name.strip()
    if not tenant or not name:
        raise wrong("adapter", "Name the tenant and the adapter.")
    return f"{tenant}/{name}"


def registered(done: RegisteredVersion) -> str:
    """What a registration did, in a sentence or two."""
    label = f"{done.adapter}@{done.version}"
    if not done.created:
        return f"{label} has these files already: nothing was registered."
    if done.live == done.version:
        return f"{label} is registered, and live."
    return f"{label} is registered. Live is still {done.live}, until it is promoted."


class _Body:
    """The browser's body as it comes. Mutable: whether it has ended."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ended = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._ended = message["type"] != "http.request" or not message.get("more_body")
        return message

    async def drain(self) -> None:
        """Read what is left of a refused upload, up to a bound."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while not self._ended and size < _MOST_DRAINED:
                    size += len((await self.receive()).get("body", b""))


ROUTES = (
    Route("/adapters/new", new, MANAGERS),
    Route("/adapters/new", from_source, MANAGERS, "POST"),
    Route("/adapters/upload", upload, MANAGERS, "POST", reads_body=True),
)
