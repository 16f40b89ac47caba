"""How much is tried again, and what an engine is given that comes back: over real sockets."""

from __future__ import annotations

import asyncio

from tests.integration.conftest import Deployment
from tests.integration.test_cancellation import hang_up_after, settled
from tests.integration.test_routing import ask
from tests.support.harness import running_gateway
from tests.support.waiting import until


async def test_leaving_while_the_engines_fate_is_looked_into(deployment: Deployment):
    await ask(deployment, "acme")
    for engine in deployment.engines:
        engine.faults.update({"stop_at": "headers", "health_delay": 0.6})
    await asyncio.gather(*(hang_up_after(deployment, "acme", i / 50, streamed=False) for i in range(15)))
    await settled(deployment)
    records = await deployment.gateway.usage("acme")
    assert len({r.id for r in records}) == len(records) == len(deployment.calls())


async def test_an_engine_that_comes_back_starts_slowly_and_explain_says_so(
    deployment: Deployment, tmp_path, valkey_url, prefix
):
    async with running_gateway(tmp_path / "second", valkey_url, prefix, slow_start=600.0) as second:
        second.keys = deployment.gateway.keys
        pool = second.state.pool
        await until(lambda: all(s.healthy for s in pool.states()))
        deployment.a.die()
        await until(lambda: pool.state("a").healthy is False)
        await deployment.a.revive()
        await until(lambda: pool.state("a").healthy is True)
        async with second.http() as client:
            answer = await client.get("/admin/v1/explain/acme/support")
        assert "slow start, at 10% of its share" in answer.text
        await second.set_state("b", "draining")
        assert await ask(
            Deployment(second, deployment.a, deployment.b, tmp_path), "bolt"
        )  # it is the only one left
        assert deployment.a.state.calls


async def test_a_used_up_budget_costs_no_request_of_a_dying_engine(deployment: Deployment):
    budget = deployment.gateway.state.lifecycle.retries.budget
    while budget.allows():
        pass
    await ask(deployment, "acme")
    (holder,) = [engine for engine in deployment.engines if engine.state.calls]
    other = "b" if holder is deployment.a else "a"
    await deployment.gateway.set_state(other, "cordoned")  # so that no replica takes part
    holder.faults.update({"first_byte_delay": 30.0})
    async with deployment.gateway.client("acme") as client:
        tasks = [
            asyncio.ensure_future(
                client.chat.completions.create(
                    model="support", messages=[{"role": "user", "content": str(i)}]
                )
            )
            for i in range(30)
        ]
        await until(lambda: holder.state.in_flight == 30, seconds=60)
        await deployment.gateway.set_state(other, "active")
        holder.die()
        assert len(await asyncio.gather(*tasks)) == 30
