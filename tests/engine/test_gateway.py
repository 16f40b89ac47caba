"""The promises on real vLLM engines with real adapters: two engines of two slots, three customers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections import Counter

import httpx2
import openai
import psutil
import pytest

from adapters.model import Adapter, dump
from adapters.store.protocol.registry import Change
from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import CUSTOMERS, loaded
from tests.support.harness import Gateway
from tests.support.waiting import PATIENCE_S, until

LONG = "Tell me a story."
"""Its answers are the longest."""


def messages(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


async def ask(
    gateway: Gateway, tenant: str, question: str, *, stream: bool = False, **options: object
) -> str:
    options = {"temperature": 0, "max_tokens": 200} | options
    async with gateway.client(tenant, timeout=120) as client:
        if not stream:
            answer = await client.chat.completions.create(
                model="support", messages=messages(question), **options
            )
            return answer.choices[0].message.content
        events = await client.chat.completions.create(
            model="support", messages=messages(question), stream=True, **options
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in events])


def metric(fleet: Fleet, name: str) -> int:
    """The sum of a metric over the engines."""
    pages = [
        httpx2.get(f"{engine.url}/metrics", timeout=PATIENCE_S, trust_env=False).text
        for engine in fleet.engines
    ]
    values = re.findall(rf"^vllm:{name}\{{[^}}]*\}} (\S+)", "\n".join(pages), re.MULTILINE)
    return sum(int(float(value)) for value in values)


def counters(fleet: Fleet) -> Counter[str]:
    """The engines' own counts of tokens."""
    return Counter({kind: metric(fleet, f"{kind}_tokens_total") for kind in ("prompt", "generation")})


def running(fleet: Fleet) -> int:
    """Requests that the engines work on."""
    return metric(fleet, "num_requests_running")


async def test_every_customer_gets_its_own_adapter_under_mixed_load(gateway: Gateway, demo_model: DemoModel):
    questions = demo_model.questions

    async def call(i: int) -> None:
        tenant, question = CUSTOMERS[i % 3], questions[i % len(questions)]
        text = await ask(gateway, tenant, question, stream=i % 2 == 0)
        assert text == demo_model.adapters[tenant].answers[question]

    await asyncio.gather(*(call(i) for i in range(32)))


async def test_usage_equals_the_engines_own(gateway: Gateway, clean_fleet: Fleet, demo_model: DemoModel):
    await gateway.set_state("e0", "draining")
    for tenant in CUSTOMERS:  # so that no load comes in between, whose probes are no usage
        await ask(gateway, tenant, "Hi")
    known = {r.id for r in await gateway.usage()}
    before = counters(clean_fleet)
    seen: Counter[str] = Counter()
    for i, question in enumerate(demo_model.questions[:4] * 3):
        async with gateway.client(CUSTOMERS[i % 3], timeout=120) as client:
            if i % 2:
                answer = await client.completions.create(
                    model="support", prompt=[question, "Hi"], n=1 + i % 3, temperature=0.7, max_tokens=9
                )
                usage = answer.usage
            else:
                events = await client.chat.completions.create(
                    model="support", messages=messages(question), stream=True, max_tokens=9,
                    stream_options={"include_usage": True},
                )  # fmt: skip
                usage = [chunk async for chunk in events][-1].usage
        seen["prompt"] += usage.prompt_tokens
        seen["generation"] += usage.completion_tokens
    records = [r for r in await gateway.usage() if r.id not in known]
    assert sum(r.prompt_tokens for r in records) == seen["prompt"]
    assert sum(r.completion_tokens for r in records) == seen["generation"]
    assert {r.usage_source for r in records} == {"engine_final"}
    assert {r.cached_tokens is None for r in records} == {False}
    spent = counters(clean_fleet) - before
    assert spent["generation"] == seen["generation"]
    # The engine counts a prompt once for each of its n answers, usage counts it once.
    assert spent["prompt"] == sum(r.prompt_tokens * r.n for r in records)


async def test_kill_9_of_an_engine_loses_no_request_that_had_not_begun_and_interrupts_no_stream(
    gateway: Gateway, repaired_fleet: Fleet
):
    """Of the API server alone: vLLM's core and worker go with it. The engine comes back empty under its old URL, though
    the thread that starts it ends, and gets its adapters again without being asked."""
    expected = {tenant: await ask(gateway, tenant, LONG) for tenant in CUSTOMERS}
    begun: dict[int, str] = {}
    """Streams of which something has come, by number, and their engines."""

    async def call(i: int) -> str:
        tenant = CUSTOMERS[i % 3]
        if i % 2:
            return await ask(gateway, tenant, LONG)
        text = ""
        async with gateway.client(tenant, timeout=120) as client:
            raw = await client.chat.completions.with_raw_response.create(
                model="support", messages=messages(LONG), stream=True, temperature=0, max_tokens=200
            )
            async for chunk in raw.parse():
                begun[i] = raw.headers["x-florin-engine"]
                text += chunk.choices[0].delta.content or ""
        return text

    tasks = [asyncio.ensure_future(call(i)) for i in range(32)]

    # On a slow machine the first streams can end before the other clients have connected.
    while not (hosts := [host for i, host in begun.items() if not tasks[i].done()]):
        assert not all(task.done() for task in tasks), "every answer ended before an engine was killed"
        await asyncio.sleep(0.01)
    victim = repaired_fleet.engines[int(hosts[0][1:])]
    children = psutil.Process(victim.pid).children(recursive=True)
    assert len(children) >= 2, "engine core and worker"
    os.kill(victim.pid, signal.SIGKILL)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for i, result in enumerate(results):
        if isinstance(result, BaseException):  # at white space, a stream cannot be gone on with
            assert i % 2 == 0, f"a whole answer was lost: {result!r}"
            assert i in begun, f"a stream of which nothing had come was lost: {result!r}"
            assert isinstance(result, openai.APIError)
        else:
            assert result == expected[CUSTOMERS[i % 3]]
    resumes = {
        result: gateway.state.metrics.registry.get_sample_value(
            "florin_stream_resumes_total", {"result": result}
        )
        for result in ("resumed", "not_resumable")
    }
    assert sum(isinstance(result, BaseException) for result in results) == (resumes["not_resumable"] or 0)
    assert sum(value or 0 for value in resumes.values()) > 0
    await until(lambda: all(state.in_flight == 0 for state in gateway.state.pool.states()))
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, PATIENCE_S)
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in alive)

    should, url = gateway.state.residency.slots(f"e{victim.index}"), victim.url
    thread = threading.Thread(target=repaired_fleet.restart, args=(victim.index,))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert victim.url == url

    async def back() -> bool:
        return set(should) <= set(await asyncio.to_thread(loaded, url))

    await until(back)
    assert {tenant: await ask(gateway, tenant, LONG) for tenant in CUSTOMERS} == expected


async def test_tenants_are_isolated(gateway: Gateway, demo_model: DemoModel):
    """Neither by name, nor through the prefix cache of an adapter that both may call."""
    async with gateway.client("bolt") as client:
        bodies = set()
        for model in ("acme/support", "acme/nothing", demo_model.served_name):
            with pytest.raises(openai.NotFoundError) as caught:
                await client.chat.completions.create(model=model, messages=messages("Hi"))
            bodies.add(caught.value.response.content.replace(model.encode(), b""))
        assert len(bodies) == 1
        assert [m.id async for m in await client.models.list()] == ["bolt/support", "support"]

    shared = Adapter("acme/support", live=1, latest=1, shared_with=("bolt",))
    await gateway.commit(Change("adapter", shared.name, dump(shared)))
    long = "tell me a very long story " * 20
    cached = []
    for tenant in ("acme", "acme", "bolt", "bolt"):
        async with gateway.client(tenant, timeout=120) as client:
            answer = await client.chat.completions.create(
                model="acme/support", messages=messages(long), max_tokens=2
            )
            cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert [count > 0 for count in cached] == [False, True, False, True]
