"""Replicas, the CPU tier and slots, on two real engines of two slots and eight places in CPU memory."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import httpx
import pytest

from adapters.model import SlotState, dump
from adapters.store.protocol.registry import Change
from deploy.demo.engines import DemoEngine, Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import ALL, add_tenant, loaded
from tests.support.harness import Gateway

ADAPTERS = tuple((tenant, name) for tenant in ALL for name in ("support", "sales"))
"""Two for each tenant, of the same weights: eight to the engines."""
SLOTS = 2


@pytest.fixture
async def gateway(gateway_with_engines: Gateway, demo_model: DemoModel) -> Gateway:
    """With eight adapters."""
    for tenant in ALL:
        await add_tenant(gateway_with_engines, tenant)
    async with gateway_with_engines.http() as http:
        for tenant, name in ADAPTERS:
            body = {"adapter": f"{tenant}/{name}", "source": str(demo_model.adapters[tenant].path)}
            answer = await http.post("/admin/v1/adapters", json=body)
            assert answer.status_code == 201, answer.text
    return gateway_with_engines


class Callers:
    """Clients that check each answer. Mutable: how many each engine gave."""

    def __init__(self, gateway: Gateway, model: DemoModel) -> None:
        self._gateway, self._model = gateway, model
        self.engines: Counter[str] = Counter()

    async def ask(self, tenant: str, name: str = "support", *, times: int = 1) -> None:
        async with self._gateway.client(tenant, timeout=120) as client:
            for number in range(times):
                question = self._model.questions[number % len(self._model.questions)]
                raw = await client.chat.completions.with_raw_response.create(
                    model=name,
                    messages=[{"role": "user", "content": question}],
                    temperature=0,
                    max_tokens=200,
                )
                answer = raw.parse().choices[0].message.content
                assert answer == self._model.adapters[tenant].answers[question]
                self.engines[raw.headers["x-florin-engine"]] += 1

    async def crowd(self, callers: int, *, times: int) -> None:
        """Callers of one adapter, each with one request after the other."""
        await asyncio.gather(*(self.ask("acme", times=times) for _ in range(callers)))


@pytest.fixture
def callers(gateway: Gateway, demo_model: DemoModel) -> Callers:
    return Callers(gateway, demo_model)


def engine_name(gateway: Gateway, adapter: str) -> str:
    return gateway.state.catalog.versions[f"{adapter}@v1"].engine_name


def successes(engine: DemoEngine) -> int:
    """Requests that the engine has answered, by its own count."""
    text = httpx.get(f"{engine.url}/metrics", timeout=30, trust_env=False).text
    found = re.findall(r"^vllm:request_success_total\{[^}]*\} (\S+)", text, re.MULTILINE)
    return sum(int(float(value)) for value in found)


def in_flight(engine: DemoEngine, names: Iterable[str]) -> list[set[str]]:
    """Each set of adapters that the engine has ever had running or waiting at once."""
    text = httpx.get(f"{engine.url}/metrics", timeout=30, trust_env=False).text
    lines = re.findall(r"^vllm:lora_requests_info\{(.*)\} ", text, re.MULTILINE)
    return [{name for name in names if name in line} for line in lines]


def load_calls(engine: DemoEngine) -> int:
    """Loads that the engine was asked for, by its own log."""
    return engine.log.read_text(errors="replace").count("POST /v1/load_lora_adapter")


async def test_hot_adapter_gets_both_engines_to_work(gateway: Gateway, clean_fleet: Fleet, callers: Callers):
    await callers.ask("acme")
    assert len(gateway.state.residency.holders(engine_name(gateway, "acme/support"))) == 1
    await callers.crowd(48, times=2)
    assert len(gateway.state.residency.holders(engine_name(gateway, "acme/support"))) == 2
    callers.engines.clear()  # of the time before the second one had it
    before = [successes(engine) for engine in clean_fleet.engines]
    await callers.crowd(48, times=2)
    for engine, earlier in zip(clean_fleet.engines, before, strict=True):
        answers = callers.engines[f"e{engine.index}"]
        assert answers > 0.2 * callers.engines.total()
        assert successes(engine) - earlier >= answers


async def test_adapter_with_a_maximum_of_one_replica_stays_on_one_engine(
    gateway: Gateway, clean_fleet: Fleet, callers: Callers
):
    adapter = gateway.state.catalog.adapters["acme/support"]
    await gateway.commit(Change("adapter", adapter.name, dump(replace(adapter, max_replicas=1))))
    await callers.crowd(48, times=3)
    name = engine_name(gateway, adapter.name)
    assert len(callers.engines) == 1
    assert sum(name in loaded(engine.url) for engine in clean_fleet.engines) == 1


async def test_evicted_adapter_returns_from_cpu_memory_without_a_load(
    gateway: Gateway, clean_fleet: Fleet, callers: Callers
):
    await gateway.set_state("e1", "draining")
    engine, names = clean_fleet.engines[0], [engine_name(gateway, f"{tenant}/support") for tenant in ALL]
    before = load_calls(engine)
    for tenant in ALL:
        await callers.ask(tenant)
    states = Counter(gateway.state.residency.placed("e0").values())
    assert states == {SlotState.RESIDENT: SLOTS, SlotState.CACHED: len(ALL) - SLOTS}
    assert gateway.state.residency.cached(names[0]) == ["e0"]
    assert load_calls(engine) - before == len(ALL)

    for tenant in ALL:  # each has just been evicted
        await callers.ask(tenant)
    assert gateway.state.residency.cached(names[0]) == ["e0"]
    assert load_calls(engine) - before == len(ALL)
    metrics = gateway.state.metrics.render().decode()
    loads = re.findall(r'^florin_adapter_loads_total\{.*result="(\w+)"\} (\S+)', metrics, re.MULTILINE)
    assert loads == [("ok", f"{len(ALL)}.0")]
    assert set(loaded(engine.url)) == set(names)


async def test_more_adapters_than_slots_keep_within_the_slots_and_all_get_their_turn(
    gateway: Gateway, clean_fleet: Fleet, callers: Callers
):
    """The engines' own metrics list each combination of adapters that they had at once."""
    async with asyncio.timeout(120):
        await asyncio.gather(*(callers.ask(tenant, name, times=6) for tenant, name in ADAPTERS * 2))
    names = [engine_name(gateway, f"{tenant}/{name}") for tenant, name in ADAPTERS]
    for engine in clean_fleet.engines:
        together = in_flight(engine, names)
        assert max(len(adapters) for adapters in together) == SLOTS
    assert callers.engines.total() == 2 * len(ADAPTERS) * 6
    assert len(callers.engines) == 2
