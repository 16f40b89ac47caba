"""Whatever interrupts a request, and wherever it waits just then: its lease and its usage record end exactly once,
and its connection is closed or given back."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any

import orjson
import pytest

from gateway.dataplane.asgi import AsgiRequest
from gateway.metering.attempt import AttemptMeter
from tests.integration.conftest import Deployment
from tests.integration.test_routing import ask, stream
from tests.support.forms import LONG
from tests.support.harness import fake_adapter
from tests.support.interruption import Interrupted
from tests.support.waiting import until

BODY = (
    b'{"model": "support", "stream": %s, "max_tokens": 10, "messages": [{"role": "user", "content": "Hi"}]}'
)


async def hang_up_after(deployment: Deployment, tenant: str, seconds: float, *, streamed: bool) -> None:
    await hang_up(deployment, tenant, lambda: asyncio.sleep(seconds), streamed=streamed)


async def hang_up(
    deployment: Deployment, tenant: str, when: Callable[[], Awaitable[Any]], *, streamed: bool
) -> None:
    body = BODY % (b"true" if streamed else b"false")
    host, port = deployment.gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
        + deployment.gateway.keys[tenant].encode()
        + b"\r\ncontent-length: %d\r\n\r\n" % len(body)
        + body
    )
    await writer.drain()
    await when()
    writer.transport.abort()


async def settled(deployment: Deployment) -> None:
    """No request is in flight any more, and nothing is left of any."""
    state = deployment.gateway.state
    pool, in_flight = state.pool, state.lifecycle.in_flight
    await until(lambda: not any(s.in_flight or s.leases for s in pool.states()), what=lambda: repr(pool))
    assert all(use.in_flight == 0 for s in pool.states() for use in s.uses.values())
    await until(lambda: not in_flight.requests, what=lambda: repr(in_flight))
    await until(lambda: not state.lifecycle.delivery.upstream.connections_in_use)
    await until(lambda: not any(engine.state.in_flight for engine in deployment.engines))


class Request:
    """One request to the gateway's application in this event loop, with a hand on every wait of its task."""

    def __init__(self, deployment: Deployment, model: str, *, streamed: bool) -> None:
        self._app = deployment.gateway.app
        self._pool = deployment.gateway.state.pool
        self._body = orjson.dumps(
            {
                "model": model,
                "stream": streamed,
                "max_tokens": 4,
                "messages": [{"role": "user", "content": "Hi"}],
            }
        )
        key = deployment.gateway.keys["acme"].encode()
        self._scope = {
            "type": "http", "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions",
            "query_string": b"", "method": "POST", "client": ("127.0.0.1", 1), "http_version": "1.1",
            "headers": [(b"authorization", b"Bearer " + key), (b"content-length", b"%d" % len(self._body))],
        }  # fmt: skip
        half = len(self._body) // 2
        self._parts = [(self._body[:half], True), (self._body[half:], False)]
        self._gone = asyncio.Event()
        self.sent: list[dict[str, Any]] = []

    async def _receive(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self._gone.is_set() or not self._parts:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        part, more = self._parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": more}

    async def _send(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        self.sent.append(message)

    def _lose_engine(self) -> None:
        for state in self._pool.states():
            for lease in list(state.leases):
                lease.abandon("hung")

    async def interrupted(self, at: int, how: str) -> bool:
        """Run it; whether it lived to be interrupted."""
        steps: list[Interrupted] = []
        request: Any = AsgiRequest(self._scope, self._receive, self._send)  # with more waits than a socket's

        async def run() -> None:
            task = asyncio.current_task()
            assert task
            interrupt = {
                "hung up": self._gone.set,
                "cancelled": task.cancel,
                "engine lost": self._lose_engine,
            }[how]
            steps.append(Interrupted(self._app.serve(request), at, interrupt))
            await steps[0]

        task = asyncio.create_task(run())
        async with asyncio.timeout(60):
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        return steps[0].happened


HOW = ("hung up", "cancelled")
EVERY_AWAIT = [
    case for n, case in enumerate(product(HOW, (False, True), (False, True))) if LONG or n in {0, 3, 5, 6}
]
"""The short form has each pair of values once."""


@pytest.mark.parametrize(("how", "streamed", "cold"), EVERY_AWAIT)
async def test_at_every_await(
    deployment: Deployment, caplog: pytest.LogCaptureFixture, how: str, streamed: bool, cold: bool
):
    """The client hangs up, or the server cancels what runs when its grace period is over. `streamed`: the answer;
    `cold`: its adapter is not resident."""
    caplog.set_level(logging.ERROR)
    await ask(deployment, "acme")
    state = deployment.gateway.state
    version = state.catalog.versions["acme/support@v1"].engine_name
    # Until the worker hears of the load, requests claim the version again, which would be one more wait.
    await until(lambda: state.residency.holders(version))
    for engine in deployment.engines:
        engine.faults.update({"event_delay": 0.001})  # so that events come one by one
    at, happened = 0, True
    while happened:
        at += 1
        model = "support"
        if cold:
            model = f"cold-{at}"
            await deployment.gateway.add_adapter(f"acme/{model}", fake_adapter(deployment.tmp / model))
        request = Request(deployment, model, streamed=streamed)
        happened = await request.interrupted(at, how)
        await settled(deployment)
        bodies = [m for m in request.sent if m["type"] == "http.response.body"]
        assert sum(not m.get("more_body", False) for m in bodies) <= 1, f"answered twice at wait {at}"
    assert at > 5, "hardly any wait was found: nothing is tried"

    records = await deployment.gateway.usage("acme")
    outcomes = Counter(r.outcome for r in records)
    assert outcomes.keys() == {"ok", "client_abort" if how == "hung up" else "orphaned"}
    assert outcomes["ok"] >= 2  # the first, and the one that ran to its end
    assert len(records) < at + 1, "none was interrupted before its attempt began"
    attempts = Counter(f"{r.request_id}-{r.attempt}" for r in records)
    assert set(attempts.values()) == {1}
    reached = [call.headers["x-request-id"] for call in deployment.calls()]
    assert len(set(reached)) == len(reached)
    assert set(reached) <= set(attempts), "an engine was reached by what the ledger does not know"
    assert caplog.records == []
    assert await ask(deployment, "acme") == await stream(deployment, "acme")


@pytest.mark.parametrize("how", HOW)
async def test_at_every_await_while_queued(deployment: Deployment, how: str):
    """The only engine has no room, so the request waits for its turn first."""
    await ask(deployment, "acme")
    state, gateway = deployment.gateway.state, deployment.gateway
    await gateway.add_engine("a", deployment.a.url, gpu_type="h100", seats=1)
    await gateway.set_state("b", "draining")
    await until(lambda: state.pool.state("a").credit.value == 2 and not state.pool.state("b").usable)
    deployment.a.faults.update({"event_delay": 0.001})  # so that events come one by one
    turns, waited = state.router.turns, 0
    wait = turns.wait

    async def counted(*args: Any) -> None:
        nonlocal waited
        waited += 1
        await wait(*args)

    turns.wait = counted  # type: ignore[method-assign]
    at, happened = 0, True
    while happened:
        at += 1
        deployment.a.stop_core()
        others = [asyncio.create_task(ask(deployment, "acme", max_tokens=4)) for _ in range(2)]
        await until(lambda: turns.queue("base").started == 2)
        before = waited
        one = asyncio.create_task(Request(deployment, "support", streamed=True).interrupted(at, how))
        await until(lambda before=before, one=one: waited > before or one.done())
        deployment.a.core.resume()
        happened = await one
        assert waited > before or at < 5, "it did not wait for its turn"
        await asyncio.gather(*others)
        await settled(deployment)
        queue = turns.queue("base")
        assert (turns.waiting, len(queue.waiting), queue.started, queue.in_flight) == (0, 0, 0, {})
        assert not any(known.view.waiting for known in state.pool.states()), "a place is kept for nobody"
    assert at > 6, "hardly any wait was found: nothing is tried"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_engine_lost_at_every_await(deployment: Deployment, streamed: bool):
    """Another engine starts over or resumes, whatever the request waits for when its engine is found dead."""
    expected = await ask(deployment, "acme", max_tokens=4)
    for engine in deployment.engines:
        engine.faults.update({"event_delay": 0.001})
    at, happened = 0, True
    while happened:
        at += 1
        request = Request(deployment, "support", streamed=streamed)
        happened = await request.interrupted(at, "engine lost")
        await settled(deployment)
        body = b"".join(m["body"] for m in request.sent if m["type"] == "http.response.body")
        text = text_of(body, streamed=streamed)
        if b"stream_interrupted" in body:  # an engine cannot resume after white space
            assert expected.startswith(text)
        else:
            assert text == expected, f"wrong answer after the loss at wait {at}"
    assert at > 5, "hardly any wait was found: nothing is tried"
    records = await deployment.gateway.usage("acme")
    assert {r.outcome for r in records} <= {"ok", "failover", "resumed", "engine_error"}
    assert len({r.request_id for r in records}) == at + 1
    assert max(Counter(r.request_id for r in records if r.outcome in {"ok", "resumed"}).values()) == 1
    assert len(records) > at + 1, "no attempt was lost"


def text_of(body: bytes, *, streamed: bool) -> str:
    if not streamed:
        return orjson.loads(body)["choices"][0]["message"]["content"]
    events = [orjson.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    return "".join(c["delta"].get("content") or "" for event in events for c in event.get("choices", ()))


async def test_cancelled_before_the_request_is_sent(deployment: Deployment, monkeypatch: pytest.MonkeyPatch):
    """The log is slow, and the client gone meanwhile: a prompt that was never sent counts no tokens."""
    await ask(deployment, "acme")
    asked = len(deployment.calls())
    waits, slow = asyncio.Event(), asyncio.Event()

    async def logged(_: AttemptMeter) -> None:
        waits.set()
        await slow.wait()

    with monkeypatch.context() as patch:
        patch.setattr(AttemptMeter, "written", False)
        patch.setattr(AttemptMeter, "logged", logged)
        await hang_up(deployment, "acme", waits.wait, streamed=False)
        await settled(deployment)
    assert len(deployment.calls()) == asked
    [gone] = [r for r in await deployment.gateway.usage("acme") if r.outcome != "ok"]
    assert (gone.outcome, gone.prompt_tokens, gone.usage_source) == ("client_abort", 0, "none")
