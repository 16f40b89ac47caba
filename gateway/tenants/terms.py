"""What an operator grants a tenant and its keys: limits, budgets, quotas, and which requests reach an engine.

Data only; None always means no limit. A limit is a `LimitRule`: whose requests, what is counted, in which
window, how much, and whether it refuses; `Limits` and `Budget` have names for the most common ones.
`gateway.tenants.schemas.terms` says what each field means. `gateway.tenants.limits` enforces limits and
budgets, `gateway.fleet.adapters.operations` the quotas of self-service, and `gateway.fields` the request
policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

MOST_MONEY: Final = Decimal(9_000_000)
"""Largest money budget: its billionths must stay below 2^53, which Lua counts exactly."""


class Priority(StrEnum):
    """A class of requests. A higher class is served first, whatever a tenant has used. It belongs to the key:
    clients cannot choose it."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Level(StrEnum):
    """Whose requests a limit of a tenant or of a key counts together, other than all of its own."""

    ORGANIZATION = "organization"
    """Those of the tenants that name this one as their organization, and its own."""
    KEY = "key"
    ADAPTER = "adapter"
    USER = "user"
    """End users, as the application names them."""
    TAG = "tag"
    """Values of `metadata.tag`."""


class Measure(StrEnum):
    REQUESTS = "requests"
    TOKENS = "tokens"
    MONEY = "money"
    CONCURRENT = "concurrent"


class Window(StrEnum):
    MINUTE = "minute"
    """A token bucket, which refills continuously. The others are budgets."""
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    TOTAL = "total"
    SESSION = "session"
    """Counts requests that name the same session."""
    ROLLING_HOUR = "rolling-hour"
    FIVE_HOURS = "5h"
    """Rolling."""
    ROLLING_DAY = "rolling-day"
    ROLLING_WEEK = "rolling-week"
    ROLLING_MONTH = "rolling-month"
    """30 days."""


@dataclass(frozen=True, slots=True)
class LimitRule:
    """As text: `tokens/day=100000`, `user:requests/5h=45`, `adapter/support:concurrent=4`, and for one that
    only counts what it would refuse `shadow:tag/batch:money/month=50`."""

    measure: Measure
    amount: Decimal
    window: Window | None = None
    """None for concurrent requests, and only for them."""
    level: Level | None = None
    """None: all requests of the tenant or key that has the limit."""
    name: str = ""
    """Names one adapter, end user or tag; empty: each has the limit to itself."""
    shadow: bool = False
    """It refuses nothing."""

    def __str__(self) -> str:
        named = f"/{self.name}" if self.name else ""
        whose = f"{self.level}{named}:" if self.level else ""
        window = f"/{self.window}" if self.window else ""
        amount = f"{self.amount.normalize():f}"
        return f"{'shadow:' if self.shadow else ''}{whose}{self.measure}{window}={amount}"


_RULE: Final = re.compile(
    rf"(?P<shadow>shadow:)?(?:(?P<level>{'|'.join(Level)})(?:/(?P<name>.{{1,200}}))?:)?"
    rf"(?P<measure>{'|'.join(Measure)})(?:/(?P<window>{'|'.join(Window)}))?"
    r"=(?P<amount>[0-9]{1,16}(?:\.[0-9]{1,6})?)(?P<power>[kMG]?)",
    re.ASCII,
)
_POWERS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_NAMED_LEVELS: Final = frozenset({Level.ADAPTER, Level.USER, Level.TAG})
_MOST: Final = {Measure.CONCURRENT: Decimal(10**6), Measure.MONEY: MOST_MONEY}


def rule_of(value: Any) -> LimitRule:
    """The limit that a text describes. Raises ValueError."""
    if isinstance(value, LimitRule):
        return value
    match = _RULE.fullmatch(value) if isinstance(value, str) else None
    if match is None or not value.isprintable():
        raise ValueError(
            f"{str(value)[:80]!r} is not LEVEL:MEASURE/WINDOW=AMOUNT, such as tokens/day=5M, "
            "user:requests/5h=45 or adapter/support:concurrent=4"
        )
    rule = LimitRule(
        Measure(match["measure"]),
        Decimal(match["amount"]) * _POWERS[match["power"]],
        Window(match["window"]) if match["window"] else None,
        Level(match["level"]) if match["level"] else None,
        match["name"] or "",
        bool(match["shadow"]),
    )
    if (rule.window is None) is not (rule.measure is Measure.CONCURRENT):
        raise ValueError(f"{value}: concurrent requests have no window, and everything else needs one")
    if rule.measure is Measure.MONEY and rule.window is Window.MINUTE:
        raise ValueError(f"{value}: money is limited by the hour at least")
    most = _MOST.get(rule.measure, Decimal(10**15))
    if not 0 < rule.amount <= most or (rule.measure is not Measure.MONEY and rule.amount % 1):
        raise ValueError(f"{value}: give an amount above 0 and at most {most:,}, whole unless it is money")
    if rule.name and rule.level not in _NAMED_LEVELS:
        raise ValueError(f"{value}: only adapters, users and tags can be named")
    return rule


RuleText = Annotated[
    LimitRule,
    BeforeValidator(rule_of),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["user:tokens/5h=200000"]}),
]
"""A limit that is text wherever it is stored, sent or shown."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a tenant, or of one key; both apply. Over all workers and hosts."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    queued: int | None = None
    max_context: int | None = None
    max_output: int | None = None
    rules: tuple[RuleText, ...] = ()
    user_required: bool = False
    """Requests have to name their end user."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of a tenant, or of one key; both apply. Days and months are the tenant's timezone's."""

    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    money_per_day: Decimal | None = None
    money_per_month: Decimal | None = None
    warn_percent: int = 80


@dataclass(frozen=True, slots=True)
class PrepaidBudget(Budget):
    """The budget of a tenant whose prepaid credits allow less than its own: `money_per_month` is what the
    month can draw of them."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """What a tenant may register itself, with a key of role tenant-admin."""

    adapters: int | None = None
    versions: int | None = None
    bytes: int | None = None
    max_rank: int | None = None
    uploads_per_hour: int | None = None
    keys: int | None = None


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """Where a tenant's requests differ from the installation's settings. None: as the settings say."""

    media_hosts: tuple[str, ...] | None = None
    chat_templates: bool | None = None
    structured_outputs: bool | None = None
    pass_fields: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Scopes:
    """What a key may do. Empty: everything that its role may."""

    adapters: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    read_only: bool = False


_NAMED: Final = (
    ("requests_per_minute", Measure.REQUESTS, Window.MINUTE),
    ("tokens_per_minute", Measure.TOKENS, Window.MINUTE),
    ("concurrent", Measure.CONCURRENT, None),
    ("tokens_per_day", Measure.TOKENS, Window.DAY),
    ("tokens_per_month", Measure.TOKENS, Window.MONTH),
    ("money_per_day", Measure.MONEY, Window.DAY),
    ("money_per_month", Measure.MONEY, Window.MONTH),
)
"""Fields of Limits and Budget that are rules."""


def rules_of(limits: Limits, budget: Budget) -> Iterator[LimitRule]:
    """Every limit of a tenant or key whose use is counted over its requests."""
    for field, measure, window in _NAMED:
        amount = getattr(limits if hasattr(limits, field) else budget, field)
        if amount is not None:
            yield LimitRule(measure, Decimal(amount), window)
    yield from limits.rules


NO_LIMITS = Limits()
NO_BUDGET = Budget()
NO_QUOTAS = Quotas()
DEFAULT_POLICY = RequestPolicy()
ALL_SCOPES = Scopes()
