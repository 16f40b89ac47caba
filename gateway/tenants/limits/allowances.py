"""What the limits of tenants and keys mean: which subjects are counted, and what each may use. Pure.

A limit counts all requests of its tenant or key together, or those of each key, adapter, end user, tag or
session. `Consumer` says whose requests those of a subject are, for the ledger; `Allowance` is what it may
use. Limits in shadow are subjects of their own, so they see the same requests and touch nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from adapters.store.protocol.limits import UNLIMITED, Amounts, Flow
from gateway.tenants.directory import Directory, Key, Tenant
from gateway.tenants.limits.needs import nano
from gateway.tenants.limits.periods import flow_at, name_of
from gateway.tenants.terms import (
    NO_BUDGET,
    NO_LIMITS,
    Budget,
    Level,
    LimitRule,
    Measure,
    PrepaidBudget,
    Window,
    rules_of,
)

UNITS: Final = {Measure.REQUESTS: 0, Measure.TOKENS: 1, Measure.MONEY: 2}
"""Places in `needs.Used`."""
CONCURRENT: Final = "concurrent"


@dataclass(frozen=True, slots=True)
class Consumer:
    """Whose requests count. Those of end users, tags and sessions are in no ledger's index, so they are
    forgotten when nothing of them counts any more."""

    tenant: str
    """Whose limit it is."""
    level: str
    """What the error calls it: `tenant`, `key`, `organization`, `adapter`, `end user`, `tag`, `session`."""
    key: str = ""
    adapter: str = ""
    family: str = ""
    """The store's family of subjects; empty: the ledger knows what it has used."""

    @property
    def is_shared(self) -> bool:
        """Whether other tenants' requests count, too: what they use is not for this one to see."""
        return self.level == "organization"


@dataclass(frozen=True, slots=True)
class Counter:
    """One thing that is counted of a subject in one window."""

    name: str
    """`tokens_per_day`, as in `Limits` and `Budget`."""
    measure: Measure
    window: Window
    limit: int
    """Money in billionths of the currency."""

    @property
    def is_rate(self) -> bool:
        return self.window is Window.MINUTE

    @property
    def unit(self) -> int:
        return UNITS[self.measure]


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one subject may use."""

    counters: tuple[Counter, ...]
    slots: int
    """Concurrent requests, or UNLIMITED."""
    warn_percent: int
    timezone: str
    shadow: bool = False
    prepaid: bool = False
    """Its money per month is what prepaid credits allow."""

    def is_credit(self, counter: Counter) -> bool:
        return self.prepaid and (counter.measure, counter.window) == (Measure.MONEY, Window.MONTH)

    def timezone_of(self, counter: Counter) -> str:
        """In which its periods begin. Credits are drawn by the months of bills, which are UTC's."""
        return "UTC" if self.is_credit(counter) else self.timezone

    def flows(self, now: int) -> tuple[Flow, ...]:
        """What the store counts, at a time in Unix microseconds."""
        return tuple(flow_at(c.measure, c.window, self.timezone_of(c), now) for c in self.counters)

    @property
    def limits(self) -> Amounts:
        return tuple(counter.limit for counter in self.counters)


@dataclass(frozen=True, slots=True)
class Scope:
    """Limits of each adapter, end user, tag or session of an owner, or of the one that is named."""

    owner: str
    """The subject whose requests are divided."""
    level: Level | None
    """None: by session only."""
    name: str
    by_session: bool
    tenant: str
    key: str
    allowance: Allowance

    def subject(self, identity: str, session: str) -> str:
        named = f"/{self.level}{'=' if self.name else ':'}{identity}" if self.level else ""
        return f"{self.owner}{named}{'/session:' + session if self.by_session else ''}{self._mode}"

    def crowd(self) -> str:
        """The subject that counts all those together that are too many to be counted each."""
        return f"{self.owner}/{self.level or ''}{'/session' if self.by_session else ''}/others{self._mode}"

    @property
    def _mode(self) -> str:
        return "?shadow" if self.allowance.shadow else ""

    def consumer(self, identity: str) -> Consumer:
        level = "session" if self.by_session else "end user" if self.level is Level.USER else str(self.level)
        bounded = self.level is Level.ADAPTER and not self.by_session
        adapter = identity if self.level is Level.ADAPTER else ""
        return Consumer(self.tenant, level, self.key, adapter, "" if bounded else self.tenant)


def allowance(
    rules: Iterable[LimitRule],
    timezone: str,
    warn_percent: int,
    *,
    shadow: bool = False,
    prepaid: bool = False,
) -> Allowance:
    """The tightest of several limits for each thing that they count."""
    limits: dict[tuple[Measure, Window], int] = {}
    slots = UNLIMITED
    for rule in rules:
        if rule.window is None:
            slots = int(rule.amount) if slots < 0 else min(slots, int(rule.amount))
            continue
        amount = nano(rule.amount) if rule.measure is Measure.MONEY else int(rule.amount)
        counted = rule.measure, rule.window
        limits[counted] = min(amount, limits.get(counted, amount))
    counters = [Counter(name_of(m, w), m, w, limit) for (m, w), limit in limits.items()]
    counters.sort(key=lambda counter: (not counter.is_rate, counter.unit))
    return Allowance(tuple(counters), slots, warn_percent, timezone, shadow, prepaid)


_DIVIDED: Final = frozenset({Level.ADAPTER, Level.USER, Level.TAG})

BudgetOf = Callable[[Tenant], Budget]
Standing = tuple[str, Consumer, Allowance]
"""A subject that always exists, whose requests count, and what it may use."""


def standing_of_tenant(tenant: Tenant) -> Iterator[Standing]:
    rules = _all_together(rules_of(tenant.limits, tenant.budget), None)
    yield from _standing(f"tenant:{tenant.name}", Consumer(tenant.name, "tenant"), rules, tenant)


def standing_of_organization(tenant: Tenant) -> Iterator[Standing]:
    """The organization that a tenant is."""
    rules = _all_together(tenant.limits.rules, Level.ORGANIZATION)
    yield from _standing(f"organization:{tenant.name}", Consumer(tenant.name, "organization"), rules, tenant)


def standing_of_key(tenant: Tenant, key: Key) -> Iterator[Standing]:
    """The key's own limits, and those that its tenant sets for each key."""
    own = rules_of(key.limits, key.budget)
    rules = [*_all_together(own, None, Level.KEY), *_all_together(tenant.limits.rules, Level.KEY)]
    consumer = Consumer(tenant.name, "key", key=key.id)
    yield from _standing(f"key:{key.id}", consumer, rules, tenant, key.budget.warn_percent)


def as_of_now(tenant: Tenant, budget_of: BudgetOf) -> Tenant:
    """With its budget at present, which prepaid credits may lower."""
    budget = budget_of(tenant)
    return tenant if budget is tenant.budget else replace(tenant, budget=budget)


def standing(directory: Directory, budget_of: BudgetOf) -> Iterator[Standing]:
    """All of the installation."""
    for known in directory.tenants.values():
        tenant = as_of_now(known, budget_of)
        if tenant.limits == NO_LIMITS and tenant.budget == NO_BUDGET:
            continue
        yield from standing_of_tenant(tenant)
        yield from standing_of_organization(tenant)
    for key in directory.keys.values():
        tenant_of_key = directory.tenants.get(key.tenant)
        if tenant_of_key is None or key.revoked is not None:
            continue
        if key.limits != NO_LIMITS or key.budget != NO_BUDGET or tenant_of_key.limits.rules:
            yield from standing_of_key(tenant_of_key, key)


def scopes_of(tenant: Tenant, key: Key, organization: Tenant | None) -> Iterator[Scope]:
    """The limits that depend on what a request says."""
    yield from _scopes(f"tenant:{tenant.name}", _divided(tenant.limits.rules, None), tenant)
    rules = [*_divided(key.limits.rules, None, Level.KEY), *_by_session(tenant.limits.rules, Level.KEY)]
    yield from _scopes(f"key:{key.id}", rules, tenant, key)
    if organization is not None:
        rules = _by_session(organization.limits.rules, Level.ORGANIZATION)
        yield from _scopes(f"organization:{organization.name}", rules, organization)


def _all_together(rules: Iterable[LimitRule], *levels: Level | None) -> list[LimitRule]:
    return [rule for rule in rules if rule.level in levels and rule.window is not Window.SESSION]


def _by_session(rules: Iterable[LimitRule], *levels: Level | None) -> list[LimitRule]:
    return [rule for rule in rules if rule.level in levels and rule.window is Window.SESSION]


def _divided(rules: tuple[LimitRule, ...], *levels: Level | None) -> list[LimitRule]:
    return [*(rule for rule in rules if rule.level in _DIVIDED), *_by_session(rules, *levels)]


def _standing(
    subject: str, consumer: Consumer, rules: list[LimitRule], tenant: Tenant, warn: int | None = None
) -> Iterator[Standing]:
    warn_percent = tenant.budget.warn_percent if warn is None else warn
    for shadow in (False, True):
        terms = allowance(
            [rule for rule in rules if rule.shadow is shadow],
            tenant.timezone,
            warn_percent,
            shadow=shadow,
            prepaid=consumer.level == "tenant" and isinstance(tenant.budget, PrepaidBudget),
        )
        if terms.counters or terms.slots >= 0:
            yield f"{subject}?shadow" if shadow else subject, consumer, terms


def _scopes(owner: str, rules: list[LimitRule], tenant: Tenant, key: Key | None = None) -> Iterator[Scope]:
    grouped: dict[tuple[Level | None, str, bool, bool], list[LimitRule]] = {}
    for rule in rules:
        level = rule.level if rule.level in _DIVIDED else None
        grouped.setdefault((level, rule.name, rule.window is Window.SESSION, rule.shadow), []).append(rule)
    warn_percent = (key or tenant).budget.warn_percent
    for (level, name, by_session, shadow), limits in grouped.items():
        terms = allowance(limits, tenant.timezone, warn_percent, shadow=shadow)
        full = f"{tenant.name}/{name}" if level is Level.ADAPTER and name and "/" not in name else name
        yield Scope(owner, level, full, by_session, tenant.name, key.id if key else "", terms)
