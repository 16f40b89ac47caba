"""What an engine says of itself is believed only where it can be true."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from adapters.drivers.driver import MAX_MODELS, Listing
from adapters.errors import EngineError
from adapters.model import Engine
from adapters.placement.engine_client import EngineClient
from tests.support.waiting import PATIENCE_S


@asynccontextmanager
async def control(answer: bytes):
    """The client, and an engine that answers every GET with `answer`."""

    async def say(_: web.Request) -> web.Response:
        return web.Response(body=answer, content_type="application/json")

    app = web.Application()
    app.router.add_get("/{path:.*}", say)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    engine = Engine("e0", f"http://{host}:{port}", "base", "H100", slots=4, max_rank=16)
    try:
        async with aiohttp.ClientSession() as session:
            yield EngineClient(session, timeout=PATIENCE_S), engine
    finally:
        await runner.cleanup()


async def test_a_listing_is_read():
    cards = [
        {"id": "base", "root": "/models/base", "max_model_len": 512},
        {"id": "fl-1", "parent": "base", "root": "/adapters/1"},
    ]
    async with control(json.dumps({"data": cards}).encode()) as (client, engine):
        assert await client.serving(engine) == Listing({"base": "/models/base"}, frozenset({"fl-1"}), 512)


@pytest.mark.parametrize("length", [-1, 0, "512", 1e30, True, None, [512]])
async def test_a_length_that_is_none_is_not_believed(length):
    cards = [{"id": "base", "max_model_len": length}]
    async with control(json.dumps({"data": cards}).encode()) as (client, engine):
        assert (await client.serving(engine)).max_model_len is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"data": 5}',
        b'{"data": [null]}',
        b'{"data": [{"id": 7}]}',
        b'{"data": [{"id": ""}]}',
        b'{"data": [{"id": ["a"], "parent": "base"}]}',
        b'{"data": [{"id": "base", "root": 5}]}',
        b'{"data": [{"id": "' + b"x" * 10_000 + b'"}]}',
        json.dumps({"data": [{"id": "a"}] * (MAX_MODELS + 1)}).encode(),
        b"\xff\xfe",
    ],
    ids=lambda body: body[:30].decode(errors="replace"),
)
async def test_another_listing_is_an_engines_error(body):
    async with control(body) as (client, engine):
        with pytest.raises(EngineError, match="a response that vLLM would not send"):
            await client.serving(engine)
