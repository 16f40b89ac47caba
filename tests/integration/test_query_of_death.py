"""Requests that kill engines, over real sockets: how many engines each takes down, and that nobody else pays.

Engines die when a prompt holds the marker, and are started again as soon as the gateway has seen it, as by a
supervisor: otherwise the bound would be the size of the fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from gateway.routing import engine_health, suspect_isolation
from loadtests.mock_engine import MockEngine
from tests.support.harness import Gateway, fake_adapter
from tests.support.waiting import until

KILL = {"marker": "KILL", "stop_at": "headers", "stop_how": "kill"}
BYSTANDERS = ("bolt", "corgi", "dora")


@dataclass
class Fleet:
    """Four engines, and somebody who starts those again that died."""

    gateway: Gateway
    engines: dict[str, MockEngine]
    deaths: list[str] = field(default_factory=list)
    clients: dict[str, openai.AsyncOpenAI] = field(default_factory=dict)

    def client(self, tenant: str) -> openai.AsyncOpenAI:
        if tenant not in self.clients:
            self.clients[tenant] = self.gateway.client(tenant)
        return self.clients[tenant]

    def calls(self) -> int:
        return sum(len(engine.state.calls) for engine in self.engines.values())

    async def busy(self) -> str:
        """The one engine that has a request, when one has."""
        await until(lambda: any(engine.state.running for engine in self.engines.values()))
        (name,) = [name for name, engine in self.engines.items() if engine.state.running]
        return name

    async def died(self, count: int) -> None:
        """So often in all, and started again."""
        await until(lambda: len(self.deaths) == count and all(e.alive for e in self.engines.values()))

    async def restart(self) -> None:
        while True:
            for name, engine in self.engines.items():
                state = self.gateway.state.pool.state(name)
                if not engine.alive and state is not None and state.healthy is False:
                    self.deaths.append(name)
                    await engine.revive()
            await asyncio.sleep(0.01)

    async def ask(self, tenant: str, text: str = "Hello") -> str:
        messages = [{"role": "user", "content": text}]
        client = self.client(tenant)
        answer = await client.chat.completions.create(model="support", messages=messages)
        return answer.choices[0].message.content

    async def stream(self, tenant: str, text: str) -> str:
        messages = [{"role": "user", "content": text}]
        client = self.client(tenant)
        events = await client.chat.completions.create(model="support", messages=messages, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in events])

    async def all_up(self) -> None:
        await until(lambda: all(s.healthy and not s.suspect for s in self.gateway.state.pool.states()))


@pytest.fixture
async def fleet(gateway: Gateway, tmp_path: Path, monkeypatch) -> AsyncIterator[Fleet]:
    # Suspects are kept apart for a second at most, which is long for an engine and short for a machine that
    # runs other tests besides: what is asked here is whether they are kept apart.
    monkeypatch.setattr(engine_health, "PROBED_SECONDS", 20.0)
    monkeypatch.setattr(suspect_isolation, "ISOLATION_SECONDS", 20.0)
    async with contextlib.AsyncExitStack() as stack:
        engines = {}
        for name in "abcd":
            engines[name] = await stack.enter_async_context(MockEngine(max_loras=4))
            await gateway.add_engine(name, engines[name].url, slots=4)
            engines[name].faults.update(KILL)
        for tenant in ("evil", *BYSTANDERS):
            await gateway.add_tenant(tenant)
            await gateway.add_adapter(f"{tenant}/support", fake_adapter(tmp_path / tenant))
        made = Fleet(gateway, engines)
        await made.all_up()
        task = asyncio.create_task(made.restart())
        yield made
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for client in made.clients.values():
            await client.close()


@contextlib.asynccontextmanager
async def bystanders(fleet: Fleet) -> AsyncIterator[list[str]]:
    """Other tenants ask, streamed and not, as long as the block lasts. All must be answered; what has gone
    wrong is raised at the end."""
    stop, answers = asyncio.Event(), list[str]()

    async def one(tenant: str, number: int) -> None:
        while not stop.is_set():
            answers.append(await fleet.ask(tenant, f"Hello {number}"))
            await asyncio.sleep(0.01)

    for engine in fleet.engines.values():
        engine.faults.update({"event_delay": 0.003})
    tasks = [asyncio.create_task(one(tenant, i)) for tenant in BYSTANDERS for i in range(3)]
    await asyncio.sleep(0.1)
    try:
        yield answers
    finally:
        stop.set()
        await asyncio.gather(*tasks)


def code(caught: BaseException) -> str:
    assert isinstance(caught, openai.APIStatusError), repr(caught)
    return str(caught.code)


async def test_one_request_sent_again_and_again_takes_down_two_engines(fleet: Fleet):
    async with bystanders(fleet) as answers:
        for _ in range(50):
            with pytest.raises(openai.UnprocessableEntityError) as caught:
                await fleet.stream("evil", "KILL")
            assert code(caught.value) == "request_suspected"
            assert 0 < int(caught.value.response.headers["retry-after"]) <= 60
        await fleet.all_up()
    assert len(fleet.deaths) == 2
    assert answers


async def test_sent_fifty_times_at_once_it_takes_down_no_more(fleet: Fleet):
    """Its copies are on one engine at a time, or each engine that has some would die at once."""
    async with fleet.gateway.http() as admin:
        await admin.put("/admin/v1/adapters/evil/support/replicas", json={"max_replicas": 1})
    async with bystanders(fleet):
        results = await asyncio.gather(
            *(fleet.ask("evil", "KILL") for _ in range(50)), return_exceptions=True
        )
        # On a busy machine some were refused for their adapter. What counts is how many engines they took down.
        assert {code(r) for r in results} <= {"request_suspected", "adapter_suspended"}
        await fleet.all_up()
    assert len(fleet.deaths) == 2


async def test_ever_new_requests_take_down_three_engines(fleet: Fleet):
    codes = []
    async with bystanders(fleet):
        for number in range(20):
            with pytest.raises(openai.APIStatusError) as caught:
                await fleet.ask("evil", f"KILL {number}")
            codes.append(code(caught.value))
            await fleet.all_up()
        with pytest.raises(openai.InternalServerError) as caught:
            await fleet.ask("evil", "Harmless")
    assert code(caught.value) == "adapter_suspended"
    async with fleet.gateway.http() as client:
        found = (await client.get("/admin/v1/doctor")).json()["data"]
    assert [d["subject"] for d in found if d["check"] == "engine_deaths"] == ["evil/support"]
    assert 0 < int(caught.value.response.headers["retry-after"]) <= 30
    assert len(fleet.deaths) == 3
    assert set(codes[2:]) == {"adapter_suspended"}
    text = fleet.gateway.state.metrics.render().decode()
    assert 'florin_engine_deaths_total{adapter="evil/support",tenant="evil"} 3.0' in text


async def test_a_client_that_hangs_up_is_remembered(fleet: Fleet):
    """Else the killer would only have to leave before its deed is seen."""
    for engine in fleet.engines.values():
        engine.faults.reset()
        engine.faults.update({"first_byte_delay": 30.0})
    for count in (1, 2):
        await fleet.all_up()
        task = asyncio.ensure_future(fleet.ask("evil", "KILL"))
        busy = await fleet.busy()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not any(e.state.running for e in fleet.engines.values()))
        fleet.engines[busy].die()
        await fleet.died(count)
    with pytest.raises(openai.UnprocessableEntityError):
        await fleet.ask("evil", "KILL")


async def test_an_engine_that_answers_500_and_then_dies_died_of_it(fleet: Fleet):
    """As vLLM's does when its core dies."""
    for engine in fleet.engines.values():
        engine.faults.reset()
        engine.faults.update({"marker": "KILL", "status": 500})
    dying = []

    async def die() -> None:
        while True:
            for name, engine in fleet.engines.items():
                if engine.faults.health_status == 200 and any(
                    c.outcome == "status 500" for c in engine.state.calls
                ):
                    engine.faults.update({"health_status": 503})
                    dying.append(name)
            await asyncio.sleep(0)

    task = asyncio.create_task(die())
    with pytest.raises(openai.UnprocessableEntityError):
        await fleet.ask("evil", "KILL")
    task.cancel()
    assert len(dying) == 2


async def test_an_operators_restart_makes_nobody_a_suspect(fleet: Fleet):
    for name in "abc":
        await asyncio.gather(*(fleet.ask(tenant) for tenant in BYSTANDERS))  # which loads their adapters
        for engine in fleet.engines.values():
            engine.stop_core()
        before = fleet.calls()
        tasks = [asyncio.ensure_future(fleet.ask(tenant)) for tenant in BYSTANDERS]
        await until(lambda before=before: fleet.calls() == before + 3)
        await fleet.gateway.set_state(name, "draining")
        fleet.engines[name].die()
        for engine in fleet.engines.values():
            engine.core.resume()
        await asyncio.gather(*tasks)
        await fleet.all_up()
        await fleet.gateway.set_state(name, "active")
    assert not fleet.gateway.state.deaths.suspects.any


async def test_one_engines_death_costs_no_request_of_many(fleet: Fleet):
    """More at once than the retry budget allows in ten seconds, and no suspicion stands in their way."""
    for name in "bcd":
        await fleet.gateway.set_state(name, "cordoned")  # all adapters on one engine
    await asyncio.gather(*(fleet.ask(tenant) for tenant in BYSTANDERS))
    fleet.engines["a"].faults.update({"first_byte_delay": 30.0})
    tasks = [asyncio.ensure_future(fleet.ask(BYSTANDERS[i % 3], f"Hello {i}")) for i in range(120)]
    await until(lambda: fleet.engines["a"].state.in_flight == 120, seconds=60)
    for name in "bcd":
        await fleet.gateway.set_state(name, "active")
    fleet.engines["a"].faults.update({"first_byte_delay": 0.0})
    fleet.engines["a"].die()
    assert all(await asyncio.gather(*tasks))
    assert fleet.deaths == ["a"]


async def test_who_leaves_while_kept_apart_leaves_nothing_behind(fleet: Fleet):
    deaths = fleet.gateway.state.deaths
    with pytest.raises(openai.UnprocessableEntityError):
        await fleet.ask("evil", "KILL")
    await fleet.all_up()
    for engine in fleet.engines.values():
        engine.faults.update({"first_byte_delay": 30.0})
    tasks = [asyncio.ensure_future(fleet.ask("evil", f"Slow {i}")) for i in range(10)]
    await until(lambda: sum(len(s.trials) for s in fleet.gateway.state.pool.states()) == 10)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(
        lambda: not any(s.leases or s.trials or s.in_flight for s in fleet.gateway.state.pool.states())
    )
    assert deaths.suspects.suspected(("evil", "evil/support"))
