"""A real vLLM whose EngineCore is stopped: its health checks say 200 all the while."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterator

import openai
import psutil
import pytest

from deploy.demo.engines import DemoEngine, Fleet
from deploy.demo.model import DemoModel
from gateway.routing.outlier_ejection import Rules
from tests.engine.test_gateway import ask, messages
from tests.support.harness import Gateway

RULES = Rules(timeout=6.0, pause=1.0)
SOON = 60.0


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


async def test_stopped_core_loses_no_request_that_had_not_begun(
    thawed: Fleet,
    gateway: Gateway,
    demo_model: DemoModel,
    capsys: pytest.CaptureFixture[str],
):
    """Two engines, one of which holds the adapter."""
    watch, question = gateway.state.hangs, demo_model.questions[0]
    right = demo_model.adapters["acme"].answers[question]
    async with gateway.client("acme") as client:
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
        watch.rules, watch._idle_timeout = RULES, 10.0
        state = gateway.state.pool.state(name)
        engine = thawed.engines[int(name[1:])]
        core = core_of(engine)
        core.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        answers = await asyncio.gather(
            *(ask(gateway, "acme", question, stream=i % 2 == 0) for i in range(12))
        )
        elsewhere = time.monotonic() - stopped
        assert answers == [right] * 12
        with pytest.raises(openai.APIError, match="failed before the answer was complete"):
            async for _ in begun:
                pass
    assert await asyncio.to_thread(engine.healthy)
    async with gateway.http() as http:
        engines = (await http.get("/admin/v1/engines")).json()["data"]
    assert {e["name"]: e["health"] for e in engines}[name] == "ejected"

    # Each probe that fails makes the pause longer; the first that passes ends it.
    await came_true(lambda: state.ejection.ejections >= 2)
    core.send_signal(signal.SIGCONT)
    resumed = time.monotonic()
    await came_true(lambda: state.usable)
    back = time.monotonic() - resumed
    assert await ask(gateway, "acme", question) == right
    outcomes = [record.outcome for record in await gateway.usage("acme")]
    assert sorted(outcomes) == ["engine_error"] + ["failover"] * 12 + ["ok"] * 14
    with capsys.disabled():
        sys.stdout.write(f"\nanswered elsewhere after {elsewhere:.1f} s; back {back:.1f} s after SIGCONT\n")


async def came_true(condition) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.05)
