"""A first token after minutes.

Source: vllm #47647, ds4 PR 151 (562 s of prefill)
Sent: a prompt whose first token comes after longer than `FLORIN_HANG_TIMEOUT` and `FLORIN_FIRST_BYTE_TIMEOUT`, streamed
and not, to an engine whose metrics show that it works
Right: one attempt, and its answer, however long it takes
Why: begun again, the prompt takes as long again, on any engine. What shows that an engine has lost a request is its
silence, not the request's age
"""

from __future__ import annotations

import asyncio

from gateway.routing.lost_requests import Patience
from gateway.routing.outlier_ejection import Rules
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import voice
from tests.integration.test_routing import ask, stream


async def test_it_is_awaited(deployment: Deployment):
    await ask(deployment, "acme")
    [engine] = [engine for engine in deployment.engines if engine.state.calls]
    deployment.gateway.state.hangs.reconfigure(
        rules=Rules(timeout=2.0, pause=1.0), patience=Patience(first_byte=2.0, idle=2.0)
    )
    engine.faults.update({"first_byte_delay": 5.0})
    answers = await asyncio.gather(ask(deployment, "acme"), stream(deployment, "acme"))
    assert all(voice(deployment, "acme/support") in answer for answer in answers)
    assert [record.outcome for record in await deployment.gateway.usage("acme")] == ["ok"] * 3
    assert len(engine.state.calls) == 3  # and no probe
