"""An answer that is not streamed, and nobody waits for its end.

Source: litellm #13245: only the input is billed if the client disconnects
Sent: `{"max_tokens": 400}` without `stream`; the client leaves after 30 s, or the engine dies then. Meanwhile
another tenant gets a short answer
Right: the record says `estimated`, with the output that an answer gets on this engine in 30 s, at most 400 tokens;
whoever kept the engine busy has nearly all of its GPU time
Why: engines count such an answer at its end only. Unknown output is not zero: the neighbours would pay for it
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.metering import attempt as attempt_module
from gateway.metering.records import Outcome
from tests.integration.conftest import Deployment
from tests.support.waiting import until

HELLO: dict[str, Any] = {
    "model": "support",
    "messages": [{"role": "user", "content": "Hello!"}],
    "max_tokens": 400,
}


async def leave(_: Deployment, request: asyncio.Future[Any]) -> None:
    request.cancel()


async def die(deployment: Deployment, _: asyncio.Future[Any]) -> None:
    await deployment.gateway.set_state("b", "active")
    deployment.a.die()


@pytest.mark.parametrize(
    ("ends", "outcome"), [(leave, Outcome.CLIENT_ABORT), (die, Outcome.FAILOVER)], ids=["client", "engine"]
)
async def test_it_counts_by_its_time(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, ends: Any, outcome: Outcome
):
    gateway, passed = deployment.gateway, 0
    elapsed = attempt_module.monotonic_ns
    monkeypatch.setattr(attempt_module, "monotonic_ns", lambda: elapsed() + passed)
    await gateway.set_state("b", "draining")
    deployment.a.faults.update({"first_byte_delay": 600.0})
    async with gateway.client("acme") as acme, gateway.client("bolt") as bolt:
        request = asyncio.ensure_future(acme.chat.completions.create(**HELLO))
        await until(lambda: deployment.a.state.calls)
        passed = 30_000_000_000
        deployment.a.faults.update({"first_byte_delay": 0.0})
        await bolt.chat.completions.create(**HELLO | {"max_tokens": 5})
        await ends(deployment, request)
        await asyncio.gather(request, return_exceptions=True)
        [record] = [r for r in await until(lambda: gateway.usage("acme")) if r.engine == "a"]
    assert (record.outcome, record.usage_source) == (outcome, "estimated")
    assert record.completion_tokens == 400
    async with gateway.http() as http:
        report = (await http.get("/finance/v1/costs", params={"by": "tenant,gpu_type"})).json()
    seconds = {
        row["tenant"]: row["gpu_seconds"]
        for part in (report, report["retry_waste"])
        for row in part["rows"]
        if row["gpu_type"] == "h100"
    }
    assert seconds["acme"] > 20 * seconds["bolt"] > 0
