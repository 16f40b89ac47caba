"""Hanging up at any moment ends the lease and the usage record exactly once."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.metering.attempt import AttemptMeter
from tests.integration.conftest import Deployment
from tests.integration.test_routing import ask, stream

BODY = (
    b'{"model": "support", "stream": %s, "max_tokens": 10, "messages": [{"role": "user", "content": "Hi"}]}'
)


async def hang_up_after(deployment: Deployment, tenant: str, seconds: float, *, streamed: bool) -> None:
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
    await asyncio.sleep(seconds)
    writer.transport.abort()


async def settled(deployment: Deployment) -> None:
    """No request is in flight any more, and nothing is left of any."""
    pool = deployment.gateway.state.pool
    deadline = time.monotonic() + 10
    while any(s.in_flight or s.leases for s in pool.states()):
        assert time.monotonic() < deadline, pool
        await asyncio.sleep(0.02)
    assert all(use.in_flight == 0 for s in pool.states() for use in s.uses.values())


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_at_every_moment_of_a_request(deployment: Deployment, streamed: bool):
    await ask(deployment, "acme")
    for engine in deployment.engines:
        engine.faults.update({"first_byte_delay": 0.02, "event_delay": 0.003})
    steps = 60
    await asyncio.gather(
        *(hang_up_after(deployment, "acme", i / 1000, streamed=streamed) for i in range(steps))
    )
    await settled(deployment)
    records = await deployment.gateway.usage("acme")
    assert len({r.id for r in records}) == len(records)
    assert len(records) == len(deployment.calls())  # an attempt that reached an engine is there once
    assert {r.outcome for r in records} <= {"ok", "client_abort"}
    assert await ask(deployment, "acme") == await stream(deployment, "acme")


async def test_before_the_engine_has_heard_of_it(deployment: Deployment, monkeypatch: pytest.MonkeyPatch):
    """The log is slow, and the client gone meanwhile: a prompt that was never sent counts no tokens."""
    await ask(deployment, "acme")
    asked = len(deployment.calls())
    slow = asyncio.Event()
    with monkeypatch.context() as patch:
        patch.setattr(AttemptMeter, "logged", lambda _: slow.wait())
        await hang_up_after(deployment, "acme", 0.1, streamed=False)
        await settled(deployment)
    assert len(deployment.calls()) == asked
    [gone] = [r for r in await deployment.gateway.usage("acme") if r.outcome != "ok"]
    assert (gone.outcome, gone.prompt_tokens, gone.usage_source) == ("client_abort", 0, "none")


async def test_while_waiting_for_a_cold_adapter(deployment: Deployment):
    """Those who stay get their answer; the load is made once, whoever leaves."""
    for engine in deployment.engines:
        engine.faults.update({"load_delay": 0.3})
    leaving = [hang_up_after(deployment, "acme", i / 50, streamed=False) for i in range(10)]
    staying = [ask(deployment, "acme") for _ in range(3)]
    answers = await asyncio.gather(*leaving, *staying)
    assert len(set(answers[10:])) == 1
    await settled(deployment)
    assert len(deployment.loads()) == 1


async def test_when_everyone_who_wanted_a_cold_adapter_has_left(deployment: Deployment):
    for engine in deployment.engines:
        engine.faults.update({"load_delay": 0.2})
    await asyncio.gather(*(hang_up_after(deployment, "acme", 0.05, streamed=False) for _ in range(5)))
    await settled(deployment)
    for engine in deployment.engines:
        engine.faults.reset()
    assert await ask(deployment, "acme")
    assert len(deployment.loads()) == 1
