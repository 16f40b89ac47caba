"""The promises on real vLLM engines with real adapters: two engines of two slots, three customers."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import httpx
import openai
import pytest

from adapters.model import Adapter, dump
from adapters.store.protocol.registry import Change
from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from gateway.metering.records import UsageRecord
from tests.engine.conftest import ALL, CUSTOMERS, loaded
from tests.support.harness import Gateway
from tests.support.waiting import until


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


def counters(fleet: Fleet) -> Counter[str]:
    """Sums over the engines' own token counters."""
    total: Counter[str] = Counter()
    for engine in fleet.engines:
        text = httpx.get(f"{engine.url}/metrics", timeout=30, trust_env=False).text
        for name, value in re.findall(
            r"^vllm:(prompt|generation)_tokens_total\{[^}]*\} (\S+)", text, re.MULTILINE
        ):
            total[name] += int(float(value))
    return total


async def test_every_customer_gets_its_own_adapter_under_mixed_load(gateway: Gateway, demo_model: DemoModel):
    questions = demo_model.questions

    async def one(i: int) -> None:
        tenant, question = CUSTOMERS[i % 3], questions[i % len(questions)]
        text = await ask(gateway, tenant, question, stream=i % 2 == 0)
        assert text == demo_model.adapters[tenant].answers[question]

    await asyncio.gather(*(one(i) for i in range(32)))


async def test_usage_equals_the_engines_own(gateway: Gateway, clean_fleet: Fleet, demo_model: DemoModel):
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


async def test_a_cold_adapter_with_twenty_waiters_is_loaded_once_per_engine(
    gateway: Gateway, clean_fleet: Fleet, demo_model: DemoModel
):
    texts = await asyncio.gather(*(ask(gateway, "acme", demo_model.questions[0]) for _ in range(20)))
    assert set(texts) == {demo_model.adapters["acme"].answers[demo_model.questions[0]]}
    name = gateway.state.catalog.versions["acme/support@v1"].engine_name
    holders = sum(name in loaded(engine.url) for engine in clean_fleet.engines)
    assert holders in {1, 2}  # while so many wait, a second engine may be worth its load
    metrics = gateway.state.metrics.render().decode()
    loads = re.findall(r'^florin_adapter_loads_total\{.*result="(\w+)"\} (\S+)', metrics, re.MULTILINE)
    assert loads == [("ok", "1.0")] * holders


async def test_four_adapters_take_turns_on_two_slots(
    gateway: Gateway, clean_fleet: Fleet, demo_model: DemoModel
):
    await gateway.set_state("e1", "draining")
    question = demo_model.questions[0]
    texts = await asyncio.gather(*(ask(gateway, ALL[i % 4], question, stream=i % 3 == 0) for i in range(24)))
    for i, text in enumerate(texts):
        assert text == demo_model.adapters[ALL[i % 4]].answers[question]
    assert len(gateway.state.residency.slots("e0")) == 2
    assert len(loaded(clean_fleet.engines[0].url)) == 4  # the others stay in its CPU memory
    assert loaded(clean_fleet.engines[1].url) == []


async def test_kill_9_of_an_engine_loses_no_request_that_had_not_begun(
    gateway: Gateway, repaired_fleet: Fleet, demo_model: DemoModel
):
    question = demo_model.questions[0]
    await asyncio.gather(*(ask(gateway, tenant, question) for tenant in CUSTOMERS))
    begun: set[int] = set()

    async def one(i: int) -> str:
        tenant = CUSTOMERS[i % 3]
        options = {"temperature": 0, "max_tokens": 300, "extra_body": {"min_tokens": 300}}
        async with gateway.client(tenant, timeout=120) as client:
            if i % 2:
                answer = await client.chat.completions.create(
                    model="support", messages=messages(question), **options
                )
                return answer.choices[0].message.content
            text = ""
            events = await client.chat.completions.create(
                model="support", messages=messages(question), stream=True, **options
            )
            async for chunk in events:
                begun.add(i)
                text += chunk.choices[0].delta.content or ""
            return text

    tasks = [asyncio.ensure_future(one(i)) for i in range(32)]

    def busy_engines():
        return [e for e in repaired_fleet.engines if gateway.state.pool.state(f"e{e.index}").in_flight]

    # On a slow machine the first streams can end before the other clients have connected.
    while len(begun) < 3 or not busy_engines():
        assert not all(task.done() for task in tasks), "every answer ended before an engine was killed"
        await asyncio.sleep(0.01)
    victim = busy_engines()[0]
    victim.kill()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for i, result in enumerate(results):
        if isinstance(result, BaseException):
            assert i % 2 == 0, f"a whole answer was lost: {result!r}"
            assert i in begun, f"a stream of which nothing had come was lost: {result!r}"
            assert isinstance(result, openai.APIError)
        else:
            assert result.startswith(demo_model.adapters[CUSTOMERS[i % 3]].voice)
    await until(lambda: all(state.in_flight == 0 for state in gateway.state.pool.states()))

    # It comes back empty under its old URL, and gets its adapters again without being asked.
    should = gateway.state.residency.slots(f"e{victim.index}")
    await asyncio.to_thread(repaired_fleet.restart, victim.index)

    async def back() -> bool:
        return set(should) <= set(await asyncio.to_thread(loaded, victim.url))

    await until(back)


async def test_client_disconnect_frees_the_engine_before_the_answer_is_complete(
    gateway: Gateway, clean_fleet: Fleet
):
    def running() -> int:
        total = 0
        for engine in clean_fleet.engines:
            text = httpx.get(f"{engine.url}/metrics", timeout=30, trust_env=False).text
            total += sum(
                int(float(v))
                for v in re.findall(r"^vllm:num_requests_running\{[^}]*\} (\S+)", text, re.MULTILINE)
            )
        return total

    generated = counters(clean_fleet)["generation"]
    async with gateway.client("acme") as client:
        events = await client.chat.completions.create(
            model="support",
            messages=messages("Hello"),
            stream=True,
            max_tokens=900,
            extra_body={"ignore_eos": True},
        )
        count = 0
        async for _ in events:
            count += 1
            if count == 10:
                break
        await events.close()
        await until(lambda: asyncio.to_thread(lambda: not running()))
    assert counters(clean_fleet)["generation"] - generated < 800

    async def recorded() -> list[UsageRecord]:
        return await gateway.usage("acme")

    (record,) = await until(recorded)
    assert record.outcome == "client_abort"
    assert record.usage_source == "engine_partial"
    assert 5 <= record.completion_tokens < 800


async def test_tenants_are_isolated(gateway: Gateway, demo_model: DemoModel):
    """Neither by name, nor through the prefix cache of an adapter that both may call."""
    async with gateway.client("bolt") as client:
        bodies = set()
        for model in ("acme/support", "acme/nothing", demo_model.served_name):
            with pytest.raises(openai.NotFoundError) as caught:
                await client.chat.completions.create(model=model, messages=messages("Hi"))
            bodies.add(caught.value.response.content.replace(model.encode(), b""))
        assert len(bodies) == 1
        assert [m.id async for m in await client.models.list()] == ["bolt/support"]

    shared = Adapter("acme/support", live=1, latest=1, shared_with=("bolt",))
    await gateway.commit(Change("adapter", shared.name, dump(shared)))
    long = "tell me a very long story " * 20
    cached = []
    for tenant in ("acme", "acme", "bolt"):
        async with gateway.client(tenant) as client:
            answer = await client.chat.completions.create(
                model="acme/support", messages=messages(long), max_tokens=2
            )
            cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached[0] == 0
    assert cached[1] > 0
    assert cached[2] == 0


async def test_answers_equal_the_engines_except_for_the_name(
    gateway: Gateway, clean_fleet: Fleet, demo_model: DemoModel
):
    """Shape for shape: what the client gets is what vLLM says."""
    question = messages(demo_model.questions[0])
    await ask(gateway, "acme", demo_model.questions[0])
    name = gateway.state.catalog.versions["acme/support@v1"].engine_name
    (engine,) = [e for e in clean_fleet.engines if name in loaded(e.url)]
    body = {"temperature": 0, "max_tokens": 5, "logprobs": True, "top_logprobs": 2, "messages": question}

    def talk() -> tuple[dict, dict]:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.keys["acme"]) as client:
            through = client.chat.completions.create(model="support", **body).to_dict()
        with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none") as client:
            direct = client.chat.completions.create(model=name, **body).to_dict()
        return through, direct

    through, direct = await asyncio.to_thread(talk)
    assert (through.pop("model"), direct.pop("model")) == ("support", name)
    for answer in (through, direct):
        for changing in ("id", "created", "usage"):
            assert answer.pop(changing)
    assert through == direct
