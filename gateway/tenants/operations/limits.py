"""What tenants use of their limits and budgets, and of the engines' time."""

from __future__ import annotations

import time

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.limits import UNKNOWN, Share
from gateway.admission.fair_queue.fleet_queue import BATCH
from gateway.dataplane.request import Sold
from gateway.operations.state import State
from gateway.tenants.directory import Key, Role, Tenant
from gateway.tenants.limits import needs
from gateway.tenants.limits.allowances import (
    CONCURRENT,
    Allowance,
    Consumer,
    Counter,
    as_of_now,
    scopes_of,
    standing_of_organization,
    standing_of_tenant,
)
from gateway.tenants.limits.periods import FOR_EVER, ROLLING, period_of
from gateway.tenants.schemas.tenants import LimitUse, Queue
from gateway.tenants.terms import Measure, rules_of
from gateway.units import DAY, short_text


async def usage(state: State, tenant: Tenant) -> tuple[LimitUse, ...] | None:
    """The present use of each limit and budget of a tenant, over all workers. Those of adapters, end users,
    tags and sessions only if they are in shadow: what they would have refused. None while Redis is away."""
    tenant = as_of_now(tenant, state.credit_limits.budget)
    now = state.clock.now()
    rows = [*standing_of_tenant(tenant), *standing_of_organization(tenant)]
    looks = [(subject, allowance.flows(now), allowance.limits) for subject, _, allowance in rows]
    try:
        shares = await state.store.looks(looks)
        [refused] = await state.store.refused(tenant.name, [now // DAY])
    except StoreUnavailableError:
        return None
    uses = []
    for (_, consumer, allowance), share in zip(rows, shares, strict=True):
        uses += _rows(consumer, allowance, share, refused, now)
    for scope in scopes_of(tenant, _NO_KEY, None):
        if scope.allowance.shadow:
            uses += _rows(scope.consumer(scope.name), scope.allowance, None, refused, now)
    return tuple(uses)


def check_money(old: Tenant | Key | None, new: Tenant | Key) -> None:
    """Raises FlorinError if changed limits of money cannot be enforced."""
    if old is None or (new.limits, new.budget) != (old.limits, old.budget):
        needs.check_money(new.limits, new.budget)


def without_prices(state: State) -> list[str]:
    """Tenants and keys whose limits of money are not enforced, because nothing is known of what they pay."""
    directory, prices = state.directory, state.prices
    tenants = (as_of_now(tenant, state.credit_limits.budget) for tenant in directory.tenants.values())
    owners: list[tuple[str, str, Tenant | Key]] = [(t.name, t.name, t) for t in tenants]
    owners += [(f"key {k.id}", k.tenant, k) for k in directory.keys.values() if k.revoked is None]
    return sorted(
        name
        for name, tenant, owner in owners
        if any(rule.measure is Measure.MONEY for rule in rules_of(owner.limits, owner.budget))
        and prices.of(tenant, Sold(), None) is None
    )


def _rows(
    consumer: Consumer, allowance: Allowance, share: Share | None, refused: dict[str, int], now: int
) -> list[LimitUse]:
    """`share`: None of what is counted for each of many subjects."""
    rows = []

    def add(name: str, used: int | str | None, allowed: int | str, resets: int | None) -> None:
        rows.append(
            LimitUse(
                limit=name,
                level=consumer.level,
                used=used,
                allowed=allowed,
                resets=resets,
                would_refuse=refused.get(f"{consumer.level} {name}", 0) if allowance.shadow else None,
            )
        )

    for index, counter in enumerate(allowance.counters):
        allowed = _amount(counter.limit, counter)
        if share is None:
            add(counter.name, None, allowed, None)
            continue
        used, booked = share.used[index], share.booked[index]
        if counter.is_rate:
            full = now // 1_000_000 + (used * 60 + counter.limit - 1) // max(1, counter.limit)
            add(counter.name, max(0, used - booked), allowed, full)
            continue
        end = period_of(counter.window, now, allowance.timezone_of(counter))[1]
        endless = end == FOR_EVER or counter.window in ROLLING
        amount = None if used == UNKNOWN else _amount(used, counter)
        add(counter.name, amount, allowed, None if endless else end // 1_000_000)
    if allowance.slots >= 0:
        add(CONCURRENT, share.running if share else None, allowance.slots, None)
    return rows


def _amount(amount: int, counter: Counter) -> int | str:
    return short_text(amount, 9) if counter.measure is Measure.MONEY else amount


_NO_KEY = Key("", "", Role.TENANT, "", 0)


def queue_of(state: State, tenant: str) -> Queue:
    """Over all base models and priorities."""
    now = time.monotonic()
    waiting = in_flight = 0
    oldest, own, everyone = now, 0.0, 0.0
    for queue in state.router.turns.queues.values():
        waiting += queue.waiting.waiting(tenant, BATCH) + queue.waiting_elsewhere(tenant)
        in_flight += sum(count for (_, name), count in queue.in_flight.items() if name == tenant)
        oldest = min([oldest, *(w.since for w in queue.waiting if w.tenant == tenant)])
        for level in queue.waiting.levels:
            for name, account in level.counters.accounts.items():
                recent = max(0.0, account.recent_at(now))
                everyone += recent
                own += recent if name == tenant else 0.0
    return Queue(
        waiting=waiting,
        longest_wait=now - oldest,
        in_flight=in_flight,
        served_share=own / everyone if everyone > 0 else 0.0,
    )
