"""The baseline: a FastAPI app that does nothing but relay.

It is optimized to be a fair baseline: uvicorn with uvloop and httptools, one unlimited aiohttp pool, orjson,
no middleware, no access log, upstream bytes passed on as they arrive.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

UPSTREAM = os.environ.get("UPSTREAM", "http://127.0.0.1:8000")
HEADERS = {"content-type": "application/json"}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        app.state.session = session
        yield


app = FastAPI(lifespan=lifespan, openapi_url=None)


@app.get("/health")
async def health() -> Response:
    return Response()


@app.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    body = await request.body()
    fields = orjson.loads(body)
    session: aiohttp.ClientSession = request.app.state.session
    upstream = await session.post(f"{UPSTREAM}/v1/chat/completions", data=body, headers=HEADERS)
    kind = upstream.headers["content-type"]
    if fields.get("stream"):
        return StreamingResponse(_relay(upstream), upstream.status, media_type=kind)
    async with upstream:
        return Response(await upstream.read(), upstream.status, media_type=kind)


async def _relay(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with upstream:
        async for part in upstream.content.iter_any():
            yield part
