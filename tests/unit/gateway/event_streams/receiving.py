"""A receiver of events on a real socket, whose faults are data."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from gateway.config.alerts import SECRET_PREFIX

KEYS = (b"k" * 32, b"o" * 32)
SECRET, OLD_SECRET = (SECRET_PREFIX + base64.b64encode(key).decode() for key in KEYS)


@dataclass
class Receiving:
    url: str = ""
    plan: list[Any] = field(default_factory=list)
    """What the next posts meet: a status, a status with headers, `hang`, `cut` (no answer) or `lost` (taken,
    and no answer); then all are taken."""
    posts: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    """Headers and bodies that were taken."""
    refused: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for _, body in self.posts for event in json.loads(body)]

    @property
    def ids(self) -> list[str]:
        return [event["id"] for event in self.events]


def verified(headers: dict[str, str], body: bytes, key: bytes) -> bool:
    """As a receiver does it."""
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    mac = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return f"v1,{mac}" in headers["webhook-signature"].split(" ")


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiving]:
    seen = Receiving()

    async def hook(request: web.Request) -> web.StreamResponse:
        post = ({name.lower(): value for name, value in request.headers.items()}, await request.read())
        fault = seen.plan.pop(0) if seen.plan else 204
        status, headers = fault if isinstance(fault, tuple) else (fault, {})
        if fault == "lost" or (isinstance(status, int) and status < 300):
            seen.posts.append(post)
        else:
            seen.refused.append(post)
        if fault == "hang":
            await asyncio.sleep(60)
        if not isinstance(status, int):
            assert request.transport is not None
            request.transport.abort()
            raise asyncio.CancelledError
        return web.Response(status=status, headers=headers, text="" if status == 204 else "not today\n")

    app = web.Application()
    app.router.add_post("/in", hook)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    seen.url = f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}/in"
    yield seen
    await runner.cleanup()
