"""What tenants use of their limits and budgets."""

from __future__ import annotations

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.limits import FLOWS, RATES, UNKNOWN, Share
from gateway.dataplane.request import Sold
from gateway.operations.state import State
from gateway.tenants.directory import Tenant
from gateway.tenants.limits.needs import check_budget
from gateway.tenants.limits.periods import period_of
from gateway.tenants.limits.subject_account import flow_limits
from gateway.tenants.limits.wording import CONCURRENT, NAMES
from gateway.tenants.schemas.tenants import LimitUse
from gateway.tenants.terms import Budget
from gateway.units import short_text


async def usage(state: State, tenant: Tenant) -> tuple[LimitUse, ...] | None:
    """The present use of each limit and budget of a tenant, over all workers. None while Redis is away."""
    limits = flow_limits(tenant.limits, state.credit_limits.budget(tenant))
    now = state.clock.now()
    try:
        [share] = await state.store.looks([(f"tenant:{tenant.name}", limits)])
    except StoreUnavailableError:
        return None
    rows = [_row(share, flow, limits[flow], now) for flow in range(FLOWS) if limits[flow] >= 0]
    if tenant.limits.concurrent is not None:
        allowed = tenant.limits.concurrent
        rows.append(LimitUse(limit=CONCURRENT, used=share.running, allowed=allowed, resets=None))
    return tuple(rows)


def check_money(old: Budget, new: Budget) -> None:
    """Raises FlorinError if a changed budget cannot be enforced."""
    if new != old:
        check_budget(new)


def without_prices(state: State) -> list[str]:
    """Tenants and keys whose budgets in money are not enforced, because nothing is known of what they pay."""
    directory, prices = state.directory, state.prices
    owners = [(t.name, t.name, state.credit_limits.budget(t)) for t in directory.tenants.values()]
    owners += [(f"key {k.id}", k.tenant, k.budget) for k in directory.keys.values() if k.revoked is None]
    return sorted(
        name
        for name, tenant, budget in owners
        if (budget.money_per_day, budget.money_per_month) != (None, None)
        and prices.of(tenant, Sold(), None) is None
    )


def _row(share: Share, flow: int, limit: int, now: int) -> LimitUse:
    if flow < RATES:
        lacking = max(0, limit - share.levels[flow])
        full = now // 1_000_000 + (lacking * 60 + limit - 1) // max(1, limit)
        used = max(0, lacking - share.booked[flow])
        return LimitUse(limit=NAMES[flow], used=used, allowed=limit, resets=full)
    counted = share.used[flow - RATES]
    money = flow >= RATES + 2
    return LimitUse(
        limit=NAMES[flow],
        used=None if counted == UNKNOWN else _amount(counted, money=money),
        allowed=_amount(limit, money=money),
        resets=period_of(flow, now)[1] // 1_000_000,
    )


def _amount(amount: int, *, money: bool) -> int | str:
    return short_text(amount, 9) if money else amount
