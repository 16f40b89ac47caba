"""The second baseline: the same relay as a bare ASGI callable, without FastAPI. About the minimum for Python
between two sockets with these libraries."""

from __future__ import annotations

import os
from typing import Any

import aiohttp
import orjson

UPSTREAM = os.environ.get("UPSTREAM", "http://127.0.0.1:8000")
HEADERS = {"content-type": "application/json"}
_pool: list[aiohttp.ClientSession] = []


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["path"] == "/health":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
    else:
        await _relay(receive, send)


async def _lifespan(receive: Any, send: Any) -> None:
    await receive()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    _pool.append(aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False))
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await _pool.pop().close()
    await send({"type": "lifespan.shutdown.complete"})


async def _relay(receive: Any, send: Any) -> None:
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    fields = orjson.loads(body)
    async with _pool[0].post(f"{UPSTREAM}/v1/chat/completions", data=body, headers=HEADERS) as upstream:
        kind = upstream.headers["content-type"].encode()
        if fields.get("stream"):
            head = [(b"content-type", kind)]
            await send({"type": "http.response.start", "status": upstream.status, "headers": head})
            async for part in upstream.content.iter_any():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            return
        answer = await upstream.read()
        head = [(b"content-type", kind), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": upstream.status, "headers": head})
        await send({"type": "http.response.body", "body": answer})
