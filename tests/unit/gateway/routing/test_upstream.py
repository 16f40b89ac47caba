"""What an engine's answer, or its silence, means for the request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from adapters.model import Engine, Version
from adapters.registry.catalog import Target
from gateway.errors import FlorinError
from gateway.routing.upstream import RetryElsewhere, Upstream, read_whole, refused
from gateway.runtime.cancel_scope import CancelScope
from gateway.transport.engine_pool import EnginePool
from tests.support.harness import engine_document
from tests.support.waiting import PATIENCE_S

VERSION = Version("acme/support", 3, "sha256:0", "fl-secret", "/a", "base", 8, 1, "test", 1)
TARGET = Target(VERSION, "base")


@dataclass
class Answering:
    """An engine that answers as told. Mutable: what it was asked."""

    status: int = 200
    body: bytes = b"{}"
    asked: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    engine: Engine = field(init=False)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(
            ({name.lower(): value for name, value in request.headers.items()}, await request.read())
        )
        return web.Response(status=self.status, body=self.body, headers={"location": "/elsewhere"})


@pytest.fixture
async def engine() -> AsyncIterator[Answering]:
    answering = Answering()
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/{path:.*}", answering.answer)
    async with TestServer(app) as server:
        answering.engine = engine_document("e0", str(server.make_url("")).rstrip("/"))
        yield answering


@pytest.fixture
async def pool() -> AsyncIterator[EnginePool]:
    opened = EnginePool()
    yield opened
    opened.close()


@pytest.fixture
def post(pool: EnginePool, engine: Answering) -> Callable[..., Any]:
    upstream = Upstream(pool, connect_timeout=PATIENCE_S)

    def call(payload: bytes = b"{}", **options: Any) -> Any:
        return upstream.post(
            engine.engine, "/v1/completions", payload, "req-1", TARGET, scope=CancelScope(), **options
        )

    return call


def said(message: str, **more: Any) -> bytes:
    return orjson.dumps({"error": {"message": message, **more}})


async def test_what_is_sent(post, engine):
    async with post(b'{"a": 1}', trace={"traceparent": "00-1-2-01"}) as response:
        assert await read_whole(response, 1 << 24) == b"{}"
    [(headers, body)] = engine.asked
    assert body == b'{"a": 1}'
    assert headers.items() >= {"x-request-id": "req-1", "traceparent": "00-1-2-01"}.items()


@pytest.mark.parametrize(
    ("status", "body", "trouble"),
    [
        (404, said("no such model", param="model"), ("unknown_model", False, False)),
        (404, b"not even JSON", ("unknown_model", False, False)),
        (429, said("busy"), ("busy", False, False)),
        (503, said("busy"), ("busy", False, False)),
        (401, said("who?"), ("denied", True, False)),
        (403, said("no"), ("denied", True, False)),
        (500, said("broken"), ("status_5xx", False, True)),
        (502, b"", ("status_5xx", False, True)),
        (307, b"", ("status_5xx", False, True)),  # a redirect is not followed
    ],
)
async def test_answers_after_which_the_request_goes_elsewhere(post, engine, status, body, trouble):
    engine.status, engine.body = status, body
    with pytest.raises(RetryElsewhere) as caught:
        async with post():
            raise AssertionError("this is no answer")
    met = caught.value
    assert (met.reason, met.suspect, met.engine_worked) == trouble
    assert met.unknown_model is (met.reason == "unknown_model")
    assert len(engine.asked) == 1


@pytest.mark.parametrize(("status", "shown"), [(400, 400), (413, 413), (422, 422), (418, 400), (404, 400)])
async def test_the_clients_mistake_is_told_without_the_engines_names(post, engine, status, shown):
    engine.status, engine.body = status, said("fl-secret takes no such thing", param="body.top_p")
    with pytest.raises(FlorinError) as caught:
        async with post():
            raise AssertionError("this is no answer")
    error = caught.value
    assert (error.code, error.status, error.param) == ("request_refused", shown, "top_p")
    assert b"acme/support@v3 takes no such thing" in error.body()
    assert b"fl-secret" not in error.body()


@pytest.mark.parametrize("status", [302, 500, 599])
def test_what_is_not_the_clients_mistake_is_no_refusal(status):
    assert refused(status, {"message": "no"}, TARGET) is None


async def test_an_engine_that_cannot_be_reached_has_not_worked(pool):
    upstream = Upstream(pool, connect_timeout=PATIENCE_S)
    with pytest.raises(RetryElsewhere) as caught:
        async with upstream.post(
            engine_document("e1", "http://127.0.0.1:1"),
            "/v1/completions",
            b"",
            "r",
            TARGET,
            scope=CancelScope(),
        ):
            raise AssertionError("this is no answer")
    assert (caught.value.reason, caught.value.suspect, caught.value.engine_worked) == (
        "unreachable",
        True,
        False,
    )


async def test_a_connection_is_used_again_only_after_a_whole_answer(post, engine, pool):
    async with post() as first:
        await read_whole(first, 100)
    async with post() as second:
        await read_whole(second, 100)
    assert second is first
    engine.body = bytes(1 << 22)
    async with post() as third:
        pass  # left unread: closed, so that the engine stops
    assert third is first
    assert third.closed
    engine.body = b"{}"
    async with post() as fourth:
        assert await read_whole(fourth, 100) == b"{}"
    assert fourth is not first
