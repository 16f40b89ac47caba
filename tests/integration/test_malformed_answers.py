"""Engines that answer what cannot be, over real sockets: another engine, or a clear end; never a 500."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import voice
from tests.integration.test_routing import ask, stream
from tests.support.waiting import PATIENCE_S

RUBBISH = '{"choices": [null]}'
"""tests/unit/gateway/routing/test_engine_answers.py and test_sse.py have all kinds of it."""


async def quiet(deployment: Deployment) -> None:
    """No lease and no record is left open."""
    async with asyncio.timeout(PATIENCE_S):
        while any(state.leases or state.in_flight for state in deployment.gateway.state.pool.states()):
            await asyncio.sleep(0.01)


async def outcomes(deployment: Deployment) -> list[str]:
    return sorted(record.outcome for record in await deployment.gateway.usage("acme"))


async def test_a_malformed_answer_goes_elsewhere(deployment: Deployment):
    await ask(deployment, "acme")
    (holder,) = [engine for engine in deployment.engines if engine.state.calls]
    holder.faults.update({"rubbish": RUBBISH, "times": 1})
    assert voice(deployment, "acme/support") in await ask(deployment, "acme")
    await quiet(deployment)
    assert await outcomes(deployment) == ["failover", "ok", "ok"]
    assert b'florin_failovers_total{reason="malformed"} 1.0' in deployment.gateway.state.metrics.render()


@pytest.mark.parametrize("rubbish", [RUBBISH, "[DONE]"], ids=["malformed", "an early end"])
async def test_a_malformed_event_in_the_middle_interrupts_the_stream(deployment: Deployment, rubbish: str):
    await ask(deployment, "acme")
    (holder,) = [engine for engine in deployment.engines if engine.state.calls]
    holder.faults.update({"rubbish": rubbish, "events": 3, "event_delay": 0.02, "times": 1})
    with pytest.raises(openai.APIError, match="failed before the answer was complete"):
        await stream(deployment, "acme")
    await quiet(deployment)
    assert await outcomes(deployment) == ["engine_error", "ok"]
    assert voice(deployment, "acme/support") in await stream(deployment, "acme")


@pytest.mark.parametrize(
    ("usage", "streamed"),
    [('{"prompt_tokens": "7,\\"tenant\\":\\"bolt\\""}', False), ('{"completion_tokens": 9e18}', True)],
    ids=["whole", "streamed"],
)
async def test_impossible_counts_punish_no_customer_and_bill_none(
    deployment: Deployment, usage: str, streamed: bool
):
    for engine in deployment.engines:
        engine.faults.update({"usage": usage})
    assert voice(deployment, "acme/support") in await (stream if streamed else ask)(deployment, "acme")
    await quiet(deployment)
    (record,) = await deployment.gateway.usage("acme")
    assert (record.outcome, record.usage_source, record.completion_tokens) == ("ok", "estimated", 0)
    assert not await deployment.gateway.usage("bolt")
    assert b'kind="usage"} 1.0' in deployment.gateway.state.metrics.render()


async def test_fleet_with_only_malformed_answers_is_a_502(deployment: Deployment):
    for engine in deployment.engines:
        engine.faults.update({"rubbish": RUBBISH})
    with pytest.raises(openai.InternalServerError) as caught:
        await ask(deployment, "acme")
    assert (caught.value.status_code, caught.value.code) == (502, "engine_failed")
    await quiet(deployment)
    assert sum(call.outcome == "finished" for call in deployment.calls()) == 3
