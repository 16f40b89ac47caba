"""CPU time of limits per request that the worker's share covers: `python -m loadtests.overhead.limits`.

What the reports to Redis cost, a few times a second and tenant, is not in it.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, cast

from adapters.store.protocol.limits import Share
from gateway.config import Settings
from gateway.costs.price_list import PriceList
from gateway.costs.selling.assignments import Assignment, RateCards
from gateway.costs.selling.cards import RateCard
from gateway.dataplane.request import CHAT, Call
from gateway.metering.ledger.ledger import Ledger
from gateway.tenants.directory import Directory, Key, Role, Tenant
from gateway.tenants.limits.allowances import Allowance, Consumer, Counter
from gateway.tenants.limits.limiter import Limiter
from gateway.tenants.terms import NO_BUDGET, NO_LIMITS, Budget, Level, LimitRule, Limits, Measure, Window
from gateway.units import Micros

_PRICES = (Micros(10**6), Micros(10**6), Micros(10**7), Micros(0))
_CARD = RateCard("standard", "2020-01", "USD", *_PRICES, 0, 0, 0, "", 0)
ROUNDS, REQUESTS = 15, 20_000
_ALL = Limits(requests_per_minute=10**9, tokens_per_minute=10**11, concurrent=10**6)
_BUDGET = Budget(tokens_per_day=10**14, money_per_month=Decimal(8_000_000))
_USERS = Limits(
    rules=(
        LimitRule(Measure.TOKENS, Decimal(10**14), Window.DAY, Level.USER),
        LimitRule(Measure.REQUESTS, Decimal(10**9), Window.FIVE_HOURS, Level.USER),
    )
)
CASES = {
    "no limits": (NO_LIMITS, NO_BUDGET),
    "requests per minute": (Limits(requests_per_minute=10**9), NO_BUDGET),
    "rates and concurrency": (_ALL, NO_BUDGET),
    "rates, concurrency, two budgets": (_ALL, _BUDGET),
    "two budgets of each end user": (_USERS, NO_BUDGET),
}


class _Unused:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name}: the share should have sufficed")


async def _no_usage(consumer: Consumer, counters: Sequence[Counter], terms: Allowance) -> list[int]:
    del consumer, terms
    return [0] * len(counters)


def microseconds(limits: Limits, budget: Budget) -> list[float]:
    """CPU time per request, of each round: admission, counting, settlement, headers."""
    tenant = Tenant("acme", base_access=False, created=0, limits=limits, budget=budget)
    key = Key("k1", "acme", Role.TENANT, "digest", 0)
    prices = PriceList(cast("Ledger", _Unused()), lambda: time.time_ns() // 1000)
    prices.load(RateCards([_CARD], [Assignment("acme", _CARD.name, _CARD.valid_from, 0)]))
    limiter = Limiter(
        _Unused(), "w1", Directory(), Settings(), _Unused(), prices,
        used=_no_usage, now=lambda: time.time_ns() // 1000,
    )  # fmt: skip
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 100}
    call = Call(
        CHAT, body, "support", stream=False, n=1, prompts=1, include_usage=False, continuous_usage=False,
        user="", end_user="bob", unknown=0, unknown_names=(), scored="", estimate=50, size=400,
    )  # fmt: skip
    limiter.enter(tenant, key, call)  # which makes its accounts; they get a share
    for account in limiter.counters.accounts.values():
        account.report(1, 0, most=1)
        zeros = (0,) * len(account.holdings)
        much = (10**14,) * len(account.holdings)
        share = Share(much, 10**5, zeros, zeros, zeros, zeros, 0, 0, wanted=False, due=())
        account.hear(share, asked_at=math.inf, now=time.monotonic())
    per_request = []
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        for _ in range(REQUESTS):
            grant = limiter.enter(tenant, key, call)
            assert grant is not None
            grant.count(50, 0, 60, choices=1)
            grant.settle()
        per_request.append((time.process_time_ns() - began) / REQUESTS / 1000)
    return per_request


async def main() -> None:
    for name, (limits, budget) in CASES.items():
        times = microseconds(limits, budget)
        print(f"{name:35} {statistics.median(times):6.2f} µs ({min(times):.2f} to {max(times):.2f})")


if __name__ == "__main__":
    asyncio.run(main())
