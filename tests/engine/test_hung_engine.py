"""A real vLLM whose EngineCore is stopped: its health checks say 200 all the while."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import openai
import psutil
import pytest

from deploy.demo.engines import DemoEngine, Fleet
from deploy.demo.model import DemoModel
from gateway.routing.lost_requests import Patience
from gateway.routing.outlier_ejection import Rules
from tests.engine.test_gateway import ask, messages
from tests.support.harness import Gateway
from tests.support.waiting import until

RULES = Rules(timeout=6.0, pause=1.0)


def core_of(engine: DemoEngine) -> psutil.Process:
    family = psutil.Process(engine.pid).children(recursive=True)
    (core,) = [p for p in family if p.name() == "VLLM::EngineCore"]
    return core


@pytest.fixture
def thawed(repaired_fleet: Fleet) -> Iterator[Fleet]:
    """Whatever the test stops goes on at its end."""
    yield repaired_fleet
    for engine in repaired_fleet.engines:
        core_of(engine).send_signal(signal.SIGCONT)


@pytest.mark.long  # waits for half a minute; tests/integration/test_hung_engines.py has the same with mock engines
async def test_stopped_core_loses_no_request_that_had_not_begun(
    thawed: Fleet,
    gateway: Gateway,
    demo_model: DemoModel,
):
    """Two engines, one of which holds the adapter."""
    watch, question = gateway.state.hangs, demo_model.questions[0]
    right = demo_model.adapters["acme"].answers[question]
    async with gateway.client("acme", timeout=120) as client:
        first = await client.chat.completions.with_raw_response.create(
            model="support", messages=messages(question)
        )
        begun = await client.chat.completions.create(
            model="support",
            messages=messages("Hi"),
            stream=True,
            max_tokens=900,
            logprobs=True,  # which no other engine can go on with
            extra_body={"ignore_eos": True},
        )
        await anext(begun)
        name = first.headers["x-florin-engine"]
        watch.reconfigure(rules=RULES, patience=Patience(first_byte=120.0, idle=10.0))
        state = gateway.state.pool.state(name)
        engine = thawed.engines[int(name[1:])]
        core = core_of(engine)
        core.send_signal(signal.SIGSTOP)
        answers = await asyncio.gather(
            *(ask(gateway, "acme", question, stream=i % 2 == 0) for i in range(12))
        )
        assert answers == [right] * 12
        with pytest.raises(openai.APIError, match="failed before the answer was complete"):
            async for _ in begun:
                pass
    await until(lambda: asyncio.to_thread(engine.healthy))
    async with gateway.http() as http:
        engines = (await http.get("/admin/v1/engines")).json()["data"]
    assert {e["name"]: e["health"] for e in engines}[name] == "ejected"

    # Each probe that fails makes the pause longer; the first that passes ends it.
    await until(lambda: state.ejection.ejections >= 2)
    core.send_signal(signal.SIGCONT)
    await until(lambda: state.usable)
    assert await ask(gateway, "acme", question) == right
    outcomes = [record.outcome for record in await gateway.usage("acme")]
    assert sorted(outcomes) == ["engine_error"] + ["failover"] * 12 + ["ok"] * 14
