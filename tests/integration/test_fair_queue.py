"""The fair queue at work: a tenant that floods the fleet hardly changes what the others see."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
import pytest

from adapters.placement.scheduling.filters import FULL
from adapters.registry.catalog import Target
from adapters.store.protocol.registry import Change
from gateway.tenants import directory
from gateway.tenants.directory import Key, Tenant
from gateway.tenants.operations.limits import queue_of
from gateway.tenants.terms import Limits, Priority
from loadtests.mock_engine import MockEngine
from tests.support.harness import Gateway, running_gateway
from tests.support.waiting import until

SEATS = 4
TOKENS = 10
EVENT = 0.01
"""Seconds for each token, so that a request takes a tenth of a second."""


def body(tokens: int = TOKENS) -> dict[str, object]:
    return {
        "model": "base", "max_tokens": tokens, "ignore_eos": True, "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
    }  # fmt: skip


@dataclass
class Site:
    """Mock engines of so many seats, and the workers of a gateway, all in this process."""

    engines: list[MockEngine]
    gateways: list[Gateway]

    def key(self, tenant: str) -> str:
        return self.gateways[0].keys[tenant]

    @property
    def waiting(self) -> int:
        return sum(gateway.state.router.turns.waiting for gateway in self.gateways)

    def http(self, tenant: str, worker: int = 0) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=None)
        return httpx2.AsyncClient(
            base_url=self.gateways[worker].url,
            headers={"authorization": f"Bearer {self.key(tenant)}"},
            timeout=30,
            limits=limits,
        )

    async def change(self, kind: str, document: Tenant | Key) -> None:
        """Store a changed tenant or key, and wait until all workers know it."""
        of = document.name if isinstance(document, Tenant) else document.id
        await self.gateways[0].commit(Change(kind, of, directory.dump(document)))
        for gateway in self.gateways:
            known = gateway.state.directory.tenants if kind == "tenant" else gateway.state.directory.keys
            await until(lambda k=known: k[of] == document)

    async def settled(self) -> None:
        """Nothing waits, and no place is kept."""
        for gateway in self.gateways:
            turns, pool = gateway.state.router.turns, gateway.state.pool
            await until(lambda t=turns: not t.waiting, what=lambda t=turns: repr(t))
            await until(lambda p=pool: not any(s.in_flight or s.view.waiting for s in p.states()))
            for queue in turns.queues.values():
                assert (len(queue.waiting), queue.started, sum(queue.in_flight.values())) == (0, 0, 0)


@pytest.fixture
def site(
    tmp_path: Path, valkey_url: str, prefix: str
) -> Callable[..., contextlib.AbstractAsyncContextManager[Site]]:
    @contextlib.asynccontextmanager
    async def open_site(
        *, workers: int = 1, engines: int = 2, seats: int = SEATS, known: bool = False, event: float = EVENT,
        **settings: object,
    ) -> AsyncIterator[Site]:  # fmt: skip
        async with AsyncExitStack() as stack:
            mocks = [await stack.enter_async_context(MockEngine(max_num_seqs=seats)) for _ in range(engines)]
            gateways = [
                await stack.enter_async_context(
                    running_gateway(tmp_path / f"worker-{n}", valkey_url, prefix, **settings)
                )
                for n in range(workers)
            ]
            first = gateways[0]
            for n, mock in enumerate(mocks):
                mock.faults.update({"event_delay": event})
                await first.add_engine(f"e{n}", mock.url, seats=seats if known else 0)
            for tenant in ("a", "b", "c"):
                await first.add_tenant(tenant, base_access=True)
            for gateway in gateways:
                await until(lambda g=gateway: len(g.state.directory.tenants) == 3)
                await until(lambda g=gateway: len(g.state.catalog.engines) == engines)
            yield Site(mocks, gateways)

    return open_site


async def ask(client: httpx2.AsyncClient, tokens: int = TOKENS) -> float:
    """Seconds to the first token of an answer that came whole."""
    start, first = time.perf_counter(), 0.0
    async with client.stream("POST", "/v1/chat/completions", json=body(tokens)) as answer:
        if answer.status_code != 200:
            raise AssertionError(await answer.aread())
        async for line in answer.aiter_lines():
            if not first and '"content":"' in line.replace('"content":""', ""):
                first = time.perf_counter() - start
    return first


@contextlib.asynccontextmanager
async def flood(site: Site, tenant: str, callers: int) -> AsyncIterator[list[float]]:
    """So many callers, each asking again and again. They finish their last request: cancelling one while it
    connects would leak its socket."""
    done: list[float] = []
    over = asyncio.Event()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(site.http(tenant, n)) for n in range(len(site.gateways))]

        async def call(client: httpx2.AsyncClient) -> None:
            while not over.is_set():
                done.append(await ask(client))

        calls = [asyncio.create_task(call(clients[n % len(clients)])) for n in range(callers)]
        try:
            yield done
        finally:
            over.set()
            await asyncio.gather(*calls, return_exceptions=True)


async def overtaken(site: Site, tenant: str, count: int, *others: list[float]) -> list[int]:
    """How many answers of the others ended between each request of the tenant and its first token. Unlike
    seconds, this does not depend on the machine."""
    found = []
    async with site.http(tenant) as client:
        for _ in range(count):
            before = sum(map(len, others))
            async with client.stream("POST", "/v1/chat/completions", json=body()) as answer:
                assert answer.status_code == 200, await answer.aread()
                async for line in answer.aiter_lines():
                    if '"content":"' in line.replace('"content":""', ""):
                        found.append(sum(map(len, others)) - before)
                        break
    return sorted(found)


async def test_a_flood_hardly_delays_others(site):
    async with site(workers=2) as place:
        async with flood(place, "a", 60) as done:
            await until(lambda: place.waiting > 10)
            await asyncio.sleep(1.0)
            during = await overtaken(place, "b", 10, done)
        await place.settled()
        assert during[-2] <= 3 * len(place.engines) * SEATS, "60 callers are before it without the queue"


async def test_tenants_that_flood_together_share_by_weight(site):
    async with site(workers=2, known=True) as place:
        tenant = place.gateways[0].state.directory.tenants["b"]
        await place.change("tenant", replace(tenant, weight=3.0))
        async with flood(place, "a", 40) as of_a, flood(place, "b", 40) as of_b:
            await until(lambda: place.waiting > 20)
            await until(lambda: len(of_a) + len(of_b) > 60)
            before = len(of_a), len(of_b)
            # So many, and not so many seconds: of a few, the shares are a matter of chance.
            await until(lambda: len(of_a) + len(of_b) > sum(before) + 200)
            served = len(of_a) - before[0], len(of_b) - before[1]
        await place.settled()
    assert 2.0 < served[1] / served[0] < 4.5


async def test_a_key_of_high_priority_goes_first(site):
    async with site(known=True) as place:
        key = next(k for k in place.gateways[0].state.directory.keys.values() if k.tenant == "b")
        await place.change("key", replace(key, priority=Priority.HIGH))
        key = next(k for k in place.gateways[0].state.directory.keys.values() if k.tenant == "a")
        await place.change("key", replace(key, priority=Priority.LOW))
        async with flood(place, "a", 60) as of_a, flood(place, "c", 60) as of_c:
            await until(lambda: place.waiting > 90)
            high, low = (place.gateways[0].state.router.turns.queue("base").waiting.levels[n] for n in (0, 2))
            assert high.size == 0
            await until(lambda: low.size >= 60 - 2 * (SEATS + 1))  # only what was sent before the others came
            assert (await overtaken(place, "b", 5, of_a, of_c))[-1] <= 3 * len(place.engines) * SEATS
        await place.settled()


async def test_a_tenants_limit_of_queued_requests(site):
    async with site(workers=2, engines=1, seats=1, known=True) as place:
        tenant = place.gateways[0].state.directory.tenants["a"]
        await place.change("tenant", replace(tenant, limits=Limits(queued=3)))
        async with place.http("a") as client, place.http("a", 1) as other:
            place.engines[0].stop_core()
            calls = [asyncio.create_task(ask(client)) for _ in range(2)]
            await until(lambda: place.gateways[0].state.router.turns.queue("base").started == 2)
            view = next(s.view for s in place.gateways[1].state.pool.states())
            await until(lambda: view.others_in_flight == 2)
            calls += [asyncio.create_task(ask(c)) for c in (client, client, other)]
            await until(lambda: place.waiting == 3)
            turns = place.gateways[1].state.router.turns
            await until(lambda: turns.queue("base").waiting_elsewhere("a") == 2)
            answer = await other.post("/v1/chat/completions", json=body())
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
            assert int(answer.headers["retry-after"]) >= 1
            place.engines[0].core.resume()
            await asyncio.gather(*calls)
        await place.settled()


async def test_who_hangs_up_while_queued_leaves_at_once(site):
    async with site(engines=1, seats=1, known=True) as place, place.http("a") as client:
        place.engines[0].stop_core()
        calls = [asyncio.create_task(ask(client)) for _ in range(12)]
        await until(lambda: place.waiting == 10 and len(place.engines[0].state.calls) == 2)
        for call in calls[2:]:
            call.cancel()
        await until(lambda: place.waiting == 0)
        heard = len(place.engines[0].state.calls)
        place.engines[0].core.resume()
        await asyncio.gather(*calls[:2], return_exceptions=True)
        assert len(place.engines[0].state.calls) == heard == 2
        await place.settled()


async def test_too_long_a_wait_is_refused_at_once_with_a_true_retry_after(site):
    async with site(engines=1, seats=1, known=True, event=0.05, queue_timeout=2.0) as place:
        async with place.http("a") as client:
            await ask(client)  # half a second each
            place.engines[0].stop_core()
            calls = [asyncio.create_task(client.post("/v1/chat/completions", json=body())) for _ in range(20)]
            start = time.perf_counter()
            first, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            assert {call.result().status_code for call in first} == {503}, "the first answer is a refusal"
            place.engines[0].core.resume()
            answers = await asyncio.gather(*calls)
            refused = [a for a in answers if a.status_code == 503]
            assert len(refused) >= 8
            for answer in refused:
                assert answer.json()["error"]["code"] == "overloaded"
            wait = max(int(answer.headers["retry-after"]) for answer in refused)
            await asyncio.sleep(max(0.0, start + wait - time.perf_counter()))
            assert (await client.post("/v1/chat/completions", json=body())).status_code == 200
        await place.settled()


async def test_the_death_of_an_engine_while_requests_wait_costs_none(site):
    async with site(engines=2, known=True) as place, place.http("a") as client:
        calls = [asyncio.create_task(ask(client)) for _ in range(60)]
        await until(lambda: place.waiting > 30)
        await place.engines[0].stop()
        await asyncio.gather(*calls)
        await place.settled()


async def test_it_can_be_switched_off(site):
    async with site(fair_queue=False) as place, place.http("a") as client:
        for engine in place.engines:
            engine.stop_core()
        asked = asyncio.gather(*(ask(client) for _ in range(40)))
        states = place.gateways[0].state.pool.states()
        await until(lambda: max(state.in_flight for state in states) > 2 * SEATS)
        for engine in place.engines:
            engine.core.resume()
        await asked
        assert place.waiting == 0


async def test_what_the_operator_sees(site):
    async with site(engines=1, known=True, event=0.05) as place:
        gateway = place.gateways[0]
        async with flood(place, "a", 20), gateway.http() as operator:
            await until(lambda: place.waiting == 20 - SEATS - 1)

            async def told() -> str:  # an answer each, and gauges are set once a second
                text = (await operator.get("/metrics")).text
                return text if all(word in text for word in words) else ""

            words = (
                'florin_queue_waiting{base_model="base",priority="normal"} 1',
                f'florin_engine_credit{{engine="e0"}} {SEATS + 1}.0',
                'florin_queue_wait_seconds_count{priority="normal"}',
                'florin_tenant_service_total{tenant="a"}',
            )
            await until(told)
            seen, unknown = queue_of(gateway.state, "a"), queue_of(gateway.state, "b")
            assert 0 < seen.waiting < 20
            assert 0 < seen.in_flight <= SEATS + 1
            assert 0 < seen.longest_wait < 60
            assert seen.served_share == 1.0
            assert (unknown.waiting, unknown.in_flight, unknown.served_share) == (0, 0, 0.0)

            def full() -> bool:  # but for the moment between one answer and the next request
                [score] = gateway.state.router.scores(Target(None, "base"))
                return (score.cost, score.reason) == (None, FULL)

            await until(full)
        await place.settled()
