"""Limits and budgets as customers meet them: two gateways on one Redis and one ledger, and OpenAI's client."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import httpx2
import openai
import pytest
from aiohttp import web

from adapters.store.protocol.registry import Change
from gateway.costs.selling.card_lines import CardLine
from gateway.dataplane.request import Sold
from gateway.tenants import directory
from gateway.tenants.limits.needs import TokenPrice
from gateway.tenants.limits.subject_account import REPORT_SECONDS
from gateway.tenants.operations.limits import usage
from gateway.tenants.terms import NO_BUDGET, NO_LIMITS, Budget, Limits, rule_of
from loadtests.mock_engine import MockEngine
from tests.integration.conftest import Deployment
from tests.integration.test_cancellation import Request, hang_up_after, settled
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.waiting import until
from tests.unit.gateway.costs.selling.cards import sell

HELLO = [{"role": "user", "content": "Hello there"}]


@dataclass
class Pair:
    """Two gateways with one engine, and the customer acme."""

    one: Gateway
    two: Gateway
    engine: MockEngine
    redis_url: str
    prefix: str
    tmp: Path

    @property
    def gateways(self) -> tuple[Gateway, Gateway]:
        return self.one, self.two

    async def grant(
        self, limits: Limits = NO_LIMITS, budget: Budget = NO_BUDGET, key: Limits = NO_LIMITS
    ) -> None:
        """Change acme's terms; returns when both gateways know."""
        tenant = replace(self.one.state.directory.tenants["acme"], limits=limits, budget=budget)
        [old] = [k for k in self.one.state.directory.keys.values() if k.tenant == "acme"]
        owned = replace(old, limits=key)
        await self.one.commit(
            Change("tenant", "acme", directory.dump(tenant)), Change("key", old.id, directory.dump(owned))
        )
        for gateway in self.gateways:
            known = gateway.state.directory
            await until(lambda known=known: known.tenants["acme"] == tenant and known.keys[old.id] == owned)

    async def pay_in_advance(self, amount: str | None, reference: str) -> None:
        """Have the tenant pay in advance, and grant it an amount."""
        tenant = replace(self.one.state.directory.tenants["acme"], prepaid=True)
        if tenant != self.one.state.directory.tenants["acme"]:
            await self.one.commit(Change("tenant", "acme", directory.dump(tenant)))
        if amount is not None:
            body = {"tenant": "acme", "amount": amount, "reason": "Payment", "reference": reference}
            async with self.one.http() as http:
                assert (await http.post("/finance/v1/credits", json=body)).status_code in {200, 201}
        for gateway in self.gateways:
            known = gateway.state.directory
            await until(lambda known=known: known.tenants["acme"] == tenant)
            await gateway.state.prices.refresh()
            await gateway.state.credit_limits.refresh()

    async def ask(self, number: int = 0, *, retries: int = 0, **options) -> str:
        """What became of a request: `ok`, or the error's code."""
        gateway = self.gateways[number % 2]
        options = {"model": "support", "messages": HELLO, "max_tokens": 5} | options
        async with gateway.client("acme", max_retries=retries, timeout=60) as client:
            try:
                answer = await client.chat.completions.create(**options)
                if options.get("stream"):
                    async for _ in answer:
                        pass
            except openai.APIStatusError as error:
                return error.code or ""
            return "ok"

    async def response(self, number: int = 0, **body) -> httpx2.Response:
        gateway = self.gateways[number % 2]
        async with gateway.http(gateway.keys["acme"]) as http:
            return await http.post(
                "/v1/chat/completions", json={"model": "support", "messages": HELLO, "max_tokens": 5} | body
            )

    async def outcomes(self, count: int, **options) -> Counter[str]:
        return Counter(await asyncio.gather(*(self.ask(n, **options) for n in range(count))))

    async def used(self) -> dict[str, object]:
        state = self.one.state
        return {use.limit: use.used for use in await usage(state, state.directory.tenants["acme"]) or ()}


async def clear_of_midnight() -> None:
    """Budgets begin anew then."""
    left = 86_400 - time.time() % 86_400
    if left < 60:
        await asyncio.sleep(left + 1)


@pytest.fixture
async def pair(tmp_path: Path, valkey_url: str, prefix: str) -> AsyncIterator[Pair]:
    settings = {
        "ledger_url": f"sqlite:///{tmp_path / 'ledger.db'}",
        "source_private": "127.0.0.0/8",
    }
    await clear_of_midnight()
    async with (
        MockEngine() as engine,
        running_gateway(tmp_path / "one", valkey_url, prefix, **settings) as one,
        running_gateway(tmp_path / "two", valkey_url, prefix, **settings) as two,
    ):
        await one.add_engine("a", engine.url)
        await one.add_tenant("acme")
        await one.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        two.keys = one.keys
        await until(lambda: "acme" in two.state.directory.tenants)
        made = Pair(one, two, engine, valkey_url, prefix, tmp_path)
        for number in range(2):
            await until(lambda number=number: made.ask(number))
        yield made


async def test_requests_per_minute_hold_over_both_gateways(pair: Pair):
    await pair.grant(Limits(requests_per_minute=10))
    began = time.monotonic()
    found = await pair.outcomes(30)
    more = int((time.monotonic() - began) / 6)  # come back meanwhile
    assert found == {"ok": found["ok"], "rate_limit_exceeded": 30 - found["ok"]}
    assert 10 <= found["ok"] <= 10 + more
    while (refused := await pair.response()).status_code == 200:
        pass
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_exceeded")
    headers = refused.headers
    assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("10", "0")
    assert 0 <= int(headers["retry-after"]) - int(headers["retry-after-ms"]) / 1000 < 1
    assert 0 < (await pair.used())["requests_per_minute"] <= 10, "bookings are not used yet"
    async with pair.one.http() as http:
        shown = (await http.get("/metrics")).text
    assert (
        'florin_limit_refusals_total{level="tenant",limit="requests_per_minute",shadow="false",tenant="acme"}'
        in shown
    )


async def test_openais_client_gets_through_by_itself(pair: Pair):
    """Its own retries obey `retry-after-ms`."""
    await pair.grant(Limits(requests_per_minute=60))
    began = time.monotonic()
    assert await pair.outcomes(63, retries=2) == {"ok": 63}
    assert time.monotonic() - began >= 2.5, "63 requests at 60 per minute take three seconds"


async def test_tokens_are_reserved_and_then_settled(pair: Pair):
    await pair.grant(Limits(tokens_per_minute=6000))
    first = await pair.response(max_tokens=3500)
    assert first.status_code == 200
    assert int(first.headers["x-ratelimit-remaining-tokens"]) <= 2500, "reserved while it runs"
    usage_ = first.json()["usage"]
    spent = usage_["prompt_tokens"] + usage_["completion_tokens"]
    assert spent < 200

    async def given_back() -> httpx2.Response | None:
        answer = await pair.response(1, max_tokens=10)
        left = int(answer.headers["x-ratelimit-remaining-tokens"])
        await asyncio.sleep(0.5)  # each spends some, too
        return answer if left >= 6000 - spent - 100 else None

    second = await until(given_back, 30)  # time alone would give that much back in 34 seconds
    assert second is not None
    assert second.headers["x-ratelimit-limit-tokens"] == "6000"
    assert second.headers["x-ratelimit-reset-tokens"].endswith("s")


async def test_each_end_user_has_a_limit_over_both_gateways(pair: Pair):
    await pair.grant(Limits(rules=(rule_of("user:requests/day=2"),), user_required=True))
    found = await pair.outcomes(6, user="ann")
    assert found["ok"] == 2
    assert found.keys() <= {"ok", "budget_reserved", "budget_exhausted"}
    assert "This end user" in (await pair.response(safety_identifier="ann")).json()["error"]["message"]
    assert await pair.ask(user="bob") == "ok"
    assert await pair.ask() == "user_required"


async def test_a_change_takes_effect_within_a_second(pair: Pair):
    await pair.grant(Limits(requests_per_minute=2))
    assert (await pair.outcomes(4))["ok"] == 2
    await pair.grant(Limits(requests_per_minute=None))
    assert await pair.outcomes(4) == {"ok": 4}


async def test_concurrent_requests_hold_over_both_gateways(pair: Pair):
    await pair.grant(Limits(concurrent=3))
    pair.engine.stop_core()
    asked = [asyncio.create_task(pair.ask(number)) for number in range(10)]
    await until(lambda: sum(task.done() for task in asked) == 7)
    pair.engine.core.resume()
    assert Counter(await asyncio.gather(*asked)) == {"ok": 3, "concurrency_limit_exceeded": 7}
    for number in range(8):  # one after the other, on either gateway: nothing is refused that has room
        assert await pair.ask(number) == "ok"


async def test_one_request_at_a_time_may_move_between_gateways(pair: Pair):
    """The last place is back before the answer ends, though a worker reports all the time."""
    await pair.grant(Limits(concurrent=1))
    pair.engine.faults.update({"first_byte_delay": 2 * REPORT_SECONDS})  # a report says that it runs
    assert [await pair.ask(number, stream=number % 3 == 0) for number in range(10)] == ["ok"] * 10


async def test_200_calls_overrun_a_budget_of_a_cent_by_less_than_one_request(pair: Pair):
    """Each uses all the output it may, and gives a little of its prompt back."""
    line = CardLine("support", 10**6, 10**6, 10**7, adapter="acme/support")
    sell(pair.one.state.ledger, "acme", input_micros=10**9, output_micros=10**9, lines=(line,))
    for gateway in pair.gateways:
        await gateway.state.prices.refresh()
    await pair.grant(budget=Budget(money_per_day=Decimal("0.01")))
    price = pair.one.state.prices.of("acme", Sold("acme/support"), "")
    assert price is not None
    assert (price.input, price.output) == (10**9, 10**10), "the adapter's own line"
    already = 2 * price.cost(50, 0, 5)  # of the fixture
    found = await pair.outcomes(200, max_tokens=200, extra_body={"ignore_eos": True})
    assert found.keys() <= {"ok", "budget_reserved", "budget_exhausted"}
    for gateway in pair.gateways:
        await gateway.shipped()
    records = await pair.one.usage("acme")
    spent = sum(price.cost(r.prompt_tokens, r.cached_tokens or 0, r.completion_tokens) for r in records)
    worst = price.cost(200, 0, 200)  # the body has fewer bytes
    assert found["ok"] >= 4, "most of the cent can be used"
    assert spent < 10_000_000 + worst + already
    while await pair.ask(max_tokens=200) == "ok":
        pass
    final = await pair.response(max_tokens=200)
    error = final.json()["error"]
    assert (final.status_code, error["type"]) == (429, "insufficient_quota")


async def test_prepaid_credits_are_not_overrun_and_a_top_up_serves_again(pair: Pair):
    """As the budget of a cent: they are one."""
    price = TokenPrice(10**9, 10**9, 10**10, 10**10)
    line = CardLine("support", 10**6, 10**6, 10**7, adapter="acme/support")
    sell(pair.one.state.ledger, "acme", lines=(line,))
    await pair.pay_in_advance("0.02", "pay_1")
    answers = await pair.outcomes(200, max_tokens=200, extra_body={"ignore_eos": True})
    assert answers.keys() <= {"ok", "budget_reserved", "credits_exhausted"}
    assert answers["ok"] >= 4
    while await pair.ask(max_tokens=200) == "ok":
        pass
    for gateway in pair.gateways:
        await gateway.shipped()
    records = await pair.one.usage("acme")
    spent = sum(price.cost(r.prompt_tokens, r.cached_tokens or 0, r.completion_tokens) for r in records)
    assert spent < 20_000_000 + price.cost(200, 0, 200)
    await pair.pay_in_advance("0.02", "pay_1")
    assert await pair.ask(max_tokens=200) != "ok", "the same payment counts once"
    await pair.pay_in_advance("5", "pay_2")
    assert await pair.ask(max_tokens=200) == "ok"


async def test_without_credits_a_prepaid_tenant_is_refused_and_others_are_billed(pair: Pair):
    sell(pair.one.state.ledger, "acme")
    assert await pair.ask() == "ok"
    await pair.pay_in_advance(None, "")
    final = await pair.response()
    assert (final.status_code, final.json()["error"]["code"]) == (429, "credits_exhausted")


async def test_a_request_says_what_it_cost_if_it_is_asked(pair: Pair):
    line = CardLine("support", 2_000_000, 1_000_000, 20_000_000, adapter="acme/support", request_micros=1_000)
    body = {"model": "support", "messages": HELLO, "max_tokens": 5}
    asking = {"x-florin-cost": "true"}
    async with pair.one.http(pair.one.keys["acme"]) as http:
        at_cost = await http.post("/v1/chat/completions", json=body, headers=asking)
        sell(pair.one.state.ledger, "acme", lines=(line,))
        await pair.one.state.prices.refresh()
        plain = await http.post("/v1/chat/completions", json=body)
        answer = await http.post("/v1/chat/completions", json=body, headers=asking)
        stream = await http.post("/v1/chat/completions", json=body | {"stream": True}, headers=asking)
    assert not {"x-florin-cost"} & {*at_cost.headers, *plain.headers, *stream.headers}
    usage = answer.json()["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    tokens = 2 * (usage["prompt_tokens"] - cached) + cached + 20 * usage["completion_tokens"]
    amount, currency = answer.headers["x-florin-cost"].split()
    assert (Decimal(amount), currency) == (Decimal(tokens) / 10**6 + Decimal("0.001"), "USD")


async def test_an_exhausted_budget_says_when_its_period_ends(pair: Pair):
    for gateway in pair.gateways:
        await gateway.shipped()
    await pair.grant(budget=Budget(tokens_per_day=1))
    began = time.monotonic()
    final = await pair.response()
    assert final.json()["error"]["code"] == "budget_exhausted", (
        "the fixture used more already: the ledger says so"
    )
    left = 86_400 - time.time() % 86_400
    assert left - 1 < int(final.headers["retry-after"]) <= left + time.monotonic() - began + 1


async def test_a_soft_threshold_warns_and_calls_the_webhook_once(pair: Pair):
    received: list[dict] = []
    failing = [503]

    async def hook(request: web.Request) -> web.Response:
        if failing:
            return web.Response(status=failing.pop())
        received.append(await request.json())
        return web.Response()

    app = web.Application()
    app.router.add_post("/hook", hook)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        for gateway in pair.gateways:
            changed = gateway.state.settings.model_copy(update={"budget_webhook": url})
            gateway.app._running.reconfigure(changed)
        await pair.grant(budget=Budget(tokens_per_day=1000, warn_percent=1))
        await pair.ask()
        answer = await pair.response()
        assert answer.headers["x-florin-budget-warning"].startswith("tokens_per_day=")
        await until(lambda: received)
        assert (received[0]["event"], received[0]["tenant"]) == ("budget.warning", "acme")
        assert received[0]["limit"] == 1000
        async with pair.one.http() as one, pair.two.http() as two:
            shown = (await one.get("/metrics")).text + (await two.get("/metrics")).text
        assert 'florin_budget_used_ratio{budget="tokens_per_day",tenant="acme"}' in shown
        assert [await pair.ask(number) for number in range(4)] == ["ok"] * 4
        assert len(received) == 1
    finally:
        await runner.cleanup()


async def test_hang_ups_and_cancellations_leak_nothing(deployment: Deployment):
    await clear_of_midnight()
    gateway = deployment.gateway
    tenant = gateway.state.directory.tenants["acme"]
    limits = Limits(requests_per_minute=100_000, tokens_per_minute=10**9, concurrent=500)
    budget = Budget(tokens_per_day=10**12)
    await gateway.commit(
        Change("tenant", "acme", directory.dump(replace(tenant, limits=limits, budget=budget)))
    )
    await until(lambda: gateway.state.directory.tenants["acme"].limits == limits)
    await asyncio.gather(
        *(hang_up_after(deployment, "acme", i / 1000, streamed=bool(i % 2)) for i in range(60))
    )
    for how in ("hung up", "cancelled"):
        at, happened = 0, True
        while happened:
            at += 1
            if at % 3 == 0:  # through the store
                gateway.state.lifecycle.limiter.counters.accounts["tenant:acme"].expires = 0
            happened = await Request(deployment, "support", streamed=True).interrupted(at, how)
        assert at > 5
    await settled(deployment)
    [account] = [
        a for s, a in gateway.state.lifecycle.limiter.counters.accounts.items() if s == "tenant:acme"
    ]
    assert account.running == 0
    assert all(holding.reserved == 0 for holding in account.holdings)
    await until(lambda: account.idle)
    terms = account.allowance
    flows = terms.flows(gateway.state.clock.now())
    [share] = await gateway.state.store.looks([("tenant:acme", flows, terms.limits)])
    assert (share.running, share.held, share.shared) == (0, 0, (0, 0, 0))
    records = await gateway.usage("acme")
    billed = sum(r.prompt_tokens + r.completion_tokens for r in records if r.billable)
    assert share.used[-1] == billed, "what was settled is what the ledger has"
