"""Refusals and headers, as OpenAI's clients read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from adapters.store.protocol.limits import SLICES, Verdict
from gateway.errors import FlorinError
from gateway.tenants.limits.allowances import UNITS, Counter
from gateway.tenants.limits.needs import seconds_up
from gateway.tenants.limits.periods import FOR_EVER, ROLLING, period_of
from gateway.tenants.limits.subject_account import Account
from gateway.tenants.terms import Measure, Window
from gateway.units import decimal_text, shown

_RATES: Final = ((UNITS[Measure.REQUESTS], "requests"), (UNITS[Measure.TOKENS], "tokens"))
_WITHIN: Final = {
    Window.TOTAL: "in total",
    Window.FIVE_HOURS: "in five hours",
    Window.ROLLING_HOUR: "in an hour",
    Window.ROLLING_DAY: "in a day",
    Window.ROLLING_WEEK: "in seven days",
    Window.ROLLING_MONTH: "in 30 days",
}


def duration(seconds: float) -> str:
    """As Go writes it, to the millisecond: `20ms`, `1s`, `6m0s`, `1h0m0s`."""
    ms = math.ceil(seconds * 1000)
    if ms < 1000:
        return f"{ms}ms" if ms > 0 else "0s"
    minutes, rest = divmod(ms, 60_000)
    text = f"{rest // 1000}" + (f".{rest % 1000:03}".rstrip("0") if rest % 1000 else "")
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{text}s"


def rate_headers(accounts: tuple[Account, ...], now: float) -> dict[str, str]:
    """`x-ratelimit-*` of whichever limit per minute has least left."""
    least: dict[int, tuple[int, int]] = {}
    for account in accounts:
        for rate in account.rates:
            remaining = account.remaining(rate, now), rate.limit
            known = least.get(rate.unit)
            if known is None or remaining < known:
                least[rate.unit] = remaining
    headers = {}
    for unit, name in _RATES:
        if unit in least:
            left, limit = least[unit]
            headers[f"x-ratelimit-limit-{name}"] = str(limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(left)
            headers[f"x-ratelimit-reset-{name}"] = duration((limit - left) * 60 / limit if limit else 60)
    return headers


def budget_warning(accounts: tuple[Account, ...]) -> str:
    """`tokens_per_day=83%`; empty below the soft thresholds."""
    percents: dict[str, int] = {}
    for account in accounts:
        if account.budgets:
            for name, percent in account.warnings():
                percents[name] = max(percent, percents.get(name, 0))
    return ", ".join(f"{name}={percent}%" for name, percent in percents.items())


def refusal(
    account: Account,
    verdict: Verdict,
    counter: Counter | None,
    seconds: float,
    *,
    headers: Mapping[str, str],
    now_us: int,
) -> FlorinError:
    """The 429. `seconds`: until the request should come again; for budgets see below."""
    whose = account.consumer.level
    retry: float | None = seconds
    if counter is None:
        code = "concurrency_limit_exceeded"
        slots = "" if account.consumer.is_shared else f"{account.slots:,} "
        text = f"This {whose} has its limit of {slots}concurrent requests in flight."
    elif verdict is Verdict.BUDGET:
        code, text, retry = _budget(account, counter, whose, now_us)
    else:
        code = "rate_limit_exceeded"
        text = f"This {whose} has reached its limit of {_bound(account, counter)}. "
        text += f"Try again in {duration(seconds)}."
    if retry is None:
        return FlorinError(code, text, headers=headers)
    ms = {"retry-after-ms": str(math.ceil(retry * 1000))}
    return FlorinError(code, text, retry_after=seconds_up(retry), headers={**headers, **ms})


def _budget(account: Account, counter: Counter, whose: str, now_us: int) -> tuple[str, str, float | None]:
    """A budget that is only reserved, not used, may have room again once requests in flight have ended. A
    rolling one has a little more with every step of its window, and one without an end has never more."""
    bound = _bound(account, counter)
    if account.reserves(counter):
        text = f"What is left of this {whose}'s budget of {bound} is reserved by its requests in flight."
        return "budget_reserved", text, max(1.0, account.slot_seconds())
    text = f"This {whose}'s budget of {bound} is used up."
    if counter.window in ROLLING:
        return "budget_exhausted", text, ROLLING[counter.window] / SLICES / 1e6
    end = period_of(counter.window, now_us, account.allowance.timezone_of(counter))[1]
    if account.allowance.is_credit(counter):
        amount = shown(decimal_text(counter.limit, 9))
        text = f"This tenant's prepaid credits of {amount} for this month are used up."
        return "credits_exhausted", text, (end - now_us) / 1e6
    return "budget_exhausted", text, None if end == FOR_EVER else (end - now_us) / 1e6


def _bound(account: Account, counter: Counter) -> str:
    """`5,000,000 tokens per day`, `45 requests in five hours`; without the amount if tenants share it."""
    amount = f"{counter.limit:,} {counter.measure}"
    if account.consumer.is_shared:
        amount = counter.measure.value
    elif counter.measure is Measure.MONEY:
        amount = shown(decimal_text(counter.limit, 9))
    return f"{amount} {_WITHIN.get(counter.window, f'per {counter.window}')}"
