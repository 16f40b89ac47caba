"""Refusals and headers, as OpenAI's clients read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from adapters.store.protocol.limits import Flow, Verdict
from gateway.errors import FlorinError
from gateway.tenants.limits.needs import seconds_up
from gateway.tenants.limits.periods import period_of
from gateway.tenants.limits.subject_account import Account
from gateway.tenants.terms import PrepaidBudget
from gateway.units import decimal_text, shown

NAMES: Final[Mapping[int, str]] = {
    Flow.REQUESTS: "requests_per_minute",
    Flow.TOKENS: "tokens_per_minute",
    Flow.TOKENS_PER_DAY: "tokens_per_day",
    Flow.TOKENS_PER_MONTH: "tokens_per_month",
    Flow.MONEY_PER_DAY: "money_per_day",
    Flow.MONEY_PER_MONTH: "money_per_month",
}
"""As in `Limits` and `Budget`."""
CONCURRENT: Final = "concurrent"
_RATES: Final = ((Flow.REQUESTS, "requests"), (Flow.TOKENS, "tokens"))


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
    """`x-ratelimit-*` of the tenant's or the key's limit, whichever has less left."""
    headers = {}
    for flow, name in _RATES:
        remaining = [(a.remaining(flow, now), a.limits[flow]) for a in accounts if a.limits[flow] >= 0]
        if remaining:
            left, limit = min(remaining)
            headers[f"x-ratelimit-limit-{name}"] = str(limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(left)
            headers[f"x-ratelimit-reset-{name}"] = duration((limit - left) * 60 / limit if limit else 60)
    return headers


def budget_warning(accounts: tuple[Account, ...]) -> str:
    """`tokens_per_day=83%`; empty below the soft thresholds."""
    percents: dict[str, int] = {}
    for account in accounts:
        if account.budgets:
            for flow, used, limit in account.used_parts():
                percent = used * 100 // limit if limit else 100
                percents[NAMES[flow]] = max(percent, percents.get(NAMES[flow], 0))
    return ", ".join(f"{name}={percent}%" for name, percent in percents.items())


def refusal(
    account: Account, verdict: Verdict, flow: int, seconds: float, *, headers: Mapping[str, str], now_us: int
) -> FlorinError:
    """The 429. `seconds`: until the request should come again; for budgets see below."""
    whose = account.subject.partition(":")[0]
    if verdict is Verdict.SLOTS:
        code = "concurrency_limit_exceeded"
        text = f"This {whose} has its limit of {account.slots:,} concurrent requests in flight."
    elif verdict is Verdict.BUDGET:
        code, text, seconds = _budget(account, flow, whose, now_us)
    else:
        code, what = "rate_limit_exceeded", "requests" if flow == Flow.REQUESTS else "tokens"
        text = f"This {whose} has reached its limit of {account.limits[flow]:,} {what} per minute. Try again "
        text += f"in {duration(seconds)}."
    ms = {"retry-after-ms": str(math.ceil(seconds * 1000))}
    return FlorinError(code, text, retry_after=seconds_up(seconds), headers={**headers, **ms})


def _budget(account: Account, flow: int, whose: str, now_us: int) -> tuple[str, str, float]:
    """A budget that is only reserved, not used, may have room again once requests in flight have ended."""
    limit, share = account.limits[flow], account.share
    bound = f"{limit:,} tokens" if flow < Flow.MONEY_PER_DAY else shown(decimal_text(limit, 9))
    period = "day" if flow in (Flow.TOKENS_PER_DAY, Flow.MONEY_PER_DAY) else "month"
    if share is not None and share.used[flow - 2] - share.shared[flow - 2] < limit:
        text = f"What is left of this {whose}'s budget of {bound} per {period} is reserved by its requests "
        return "budget_reserved", text + "in flight.", max(1.0, account.slot_seconds())
    if flow == Flow.MONEY_PER_MONTH and isinstance(account.budget, PrepaidBudget):
        text = f"This tenant's prepaid credits of {bound} for this month are used up."
        return "credits_exhausted", text, (period_of(flow, now_us)[1] - now_us) / 1e6
    return (
        "budget_exhausted",
        f"This {whose}'s budget of {bound} per {period} is used up.",
        (period_of(flow, now_us)[1] - now_us) / 1e6,
    )
