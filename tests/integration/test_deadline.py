"""`FLORIN_TTFT_DEADLINE`: nobody works for a client whose first token would come too late."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import openai
import pytest

from tests.integration.conftest import Deployment
from tests.integration.test_routing import ask, stream
from tests.support.harness import running_gateway
from tests.support.waiting import until

SECONDS = 2.0


@pytest.fixture
async def hurried(deployment: Deployment, tmp_path: Path, valkey_url: str, prefix: str):
    """The same fleet behind a gateway with a deadline, which `refused` puts back."""
    async with running_gateway(tmp_path / "hurried", valkey_url, prefix, ttft_deadline=SECONDS) as gateway:
        gateway.keys = deployment.gateway.keys
        found = Deployment(gateway, deployment.a, deployment.b, tmp_path)
        assert gateway.state.lifecycle.retries.ttft_deadline == SECONDS
        deadline(found, 60.0)
        yield found


def deadline(hurried: Deployment, seconds: float) -> None:
    """What should succeed has a minute: the machine may be busy."""
    hurried.gateway.state.lifecycle.retries.ttft_deadline = seconds


async def refused(hurried: Deployment) -> None:
    """Of what no engine would answer before the client gives up."""
    deadline(hurried, SECONDS)
    with pytest.raises(openai.InternalServerError) as caught:
        await stream(hurried, "acme")
    assert (caught.value.status_code, caught.value.code) == (503, "placement_timeout")
    assert "within 2 s" in caught.value.message


async def test_a_stream_in_an_engines_queue_is_given_up(hurried: Deployment):
    await ask(hurried, "acme")
    for engine in hurried.engines:
        engine.faults.update({"first_byte_delay": 600.0})
    await refused(hurried)
    await until(lambda: not any(engine.state.in_flight for engine in hurried.engines))
    records = await hurried.gateway.usage("acme")
    assert [(r.outcome, r.billable) for r in records[1:]] == [("failover", False)]
    states = hurried.gateway.state.pool.states()
    assert all(state.usable and not state.view.in_flight and not state.view.pending for state in states)
    for engine in hurried.engines:
        engine.faults.update({"first_byte_delay": 0.0})
    deadline(hurried, 60.0)
    assert await stream(hurried, "acme") == await ask(hurried, "acme")


async def test_nothing_is_loaded_for_a_request_that_is_too_late(hurried: Deployment):
    """Both engines are full, and what holds their slots is busy."""
    await hurried.gateway.set_state("b", "draining")
    hurried.a.faults.update({"event_delay": 0.6})
    busy = [asyncio.ensure_future(stream(hurried, tenant, max_tokens=400)) for tenant in ("bolt", "corgi")]
    await until(lambda: hurried.a.state.in_flight == 2)
    loads = len(hurried.loads())
    await refused(hurried)
    hurried.a.faults.reset()
    assert all(await asyncio.gather(*busy)), "a stream that has begun has no deadline"
    assert len(hurried.loads()) == loads


async def test_a_stream_that_is_in_time_goes_on(hurried: Deployment):
    for engine in hurried.engines:
        engine.faults.update({"event_delay": 0.4})
    deadline(hurried, SECONDS)
    began = time.monotonic()

    async def in_time() -> str:
        """Unless the machine takes more than two seconds for the first token."""
        with suppress(openai.InternalServerError):
            return await stream(hurried, "acme", max_tokens=12)
        return ""

    assert await until(in_time)
    assert time.monotonic() - began > SECONDS
