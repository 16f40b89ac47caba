"""The CPU tier and slots, on two real engines of two slots and eight places in CPU memory."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable

import httpx2

from adapters.model import SlotState
from deploy.demo.engines import DemoEngine, Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import ALL, add_adapter, loaded
from tests.engine.test_gateway import messages
from tests.support.harness import Gateway
from tests.support.waiting import PATIENCE_S

SLOTS = 2


def in_flight(engine: DemoEngine, names: Iterable[str]) -> list[set[str]]:
    """Each set of adapters that the engine has ever had running or waiting at once."""
    text = httpx2.get(f"{engine.url}/metrics", timeout=PATIENCE_S, trust_env=False).text
    lines = re.findall(r"^vllm:lora_requests_info\{(.*)\} ", text, re.MULTILINE)
    return [{name for name in names if name in line} for line in lines]


def loads(engine: DemoEngine) -> int:
    """How many the engine has made, by its own log."""
    return engine.log.read_text(errors="replace").count("Loaded new LoRA adapter")


async def test_adapters_beyond_the_slots_return_from_cpu_memory_without_a_load_and_all_get_their_turn(
    gateway: Gateway, clean_fleet: Fleet, demo_model: DemoModel
):
    """The engines' own metrics list each combination of adapters that they had at once."""
    asked: Counter[str] = Counter()
    """By engine."""

    async def ask(tenant: str, name: str = "support", *, times: int = 1) -> None:
        async with gateway.client(tenant, timeout=120) as client:
            for number in range(times):
                question = demo_model.questions[number % len(demo_model.questions)]
                raw = await client.chat.completions.with_raw_response.create(
                    model=name, messages=messages(question), temperature=0, max_tokens=200
                )
                answer = raw.parse().choices[0].message.content
                assert answer == demo_model.adapters[tenant].answers[question]
                asked[raw.headers["x-florin-engine"]] += 1

    def engine_name(tenant: str, name: str = "support") -> str:
        return gateway.state.catalog.versions[f"{tenant}/{name}@v1"].engine_name

    await gateway.set_state("e1", "draining")
    engine, names = clean_fleet.engines[0], [engine_name(tenant) for tenant in ALL]
    before = loads(engine)
    for _ in range(2):  # the second time, each has just been evicted
        for tenant in ALL:
            await ask(tenant)
        states = Counter(gateway.state.residency.placed("e0").values())
        assert states == {SlotState.RESIDENT: SLOTS, SlotState.CACHED: len(ALL) - SLOTS}
        assert gateway.state.residency.cached(names[0]) == ["e0"]
        assert loads(engine) - before == len(ALL)
    metrics = gateway.state.metrics.render().decode()
    results = re.findall(r'^florin_adapter_loads_total\{.*result="(\w+)"\} (\S+)', metrics, re.MULTILINE)
    assert results == [("ok", f"{len(ALL)}.0")]
    assert set(loaded(engine.url)) == set(names)

    await gateway.set_state("e1", "active")
    adapters = [(tenant, name) for tenant in ALL for name in ("support", "sales")]
    for tenant in ALL:
        await add_adapter(gateway, f"{tenant}/sales", demo_model.adapters[tenant].path)
    asked.clear()
    await asyncio.gather(*(ask(tenant, name, times=3) for tenant, name in adapters * 2))
    for engine in clean_fleet.engines:
        together = in_flight(engine, [engine_name(*adapter) for adapter in adapters])
        assert max(len(those) for those in together) == SLOTS
    assert asked.total() == 2 * len(adapters) * 3
    assert len(asked) == 2
