"""What pages show of tenants and keys. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final
from urllib.parse import quote

from gateway.console.formats import NONE, compact, money, number
from gateway.console.tables import Cell, Column
from gateway.costs.forecasting.schemas import Forecast, TenantEstimate
from gateway.costs.reports.schemas.costs import CostReport, CostRow
from gateway.errors import CODES
from gateway.fleet.adapters.schemas.adapters import Adapter
from gateway.schemas.options import OptionField
from gateway.schemas.typed_text import written
from gateway.tenants.keys.schemas import Key
from gateway.tenants.people.schemas import Account
from gateway.tenants.schemas.tenants import LimitUse, QuotaUse, Tenant, TenantPage
from gateway.tenants.schemas.terms import KeyTerms, in_words, section
from gateway.tenants.terms import RequestPolicy

Json = dict[str, Any]
DAYS: Final = 30
"""Shown of the spend by day."""
_NEAR: Final = 0.8
LIMITS: Final = {
    field.path[-1]: field
    for field in (*section("limits"), *section("budget"))
    if field.option.clears and field.kind != "list"
}
"""By name, also budgets; without further limits."""


@dataclass(frozen=True, slots=True)
class Use:
    """One limit or budget, and what is used of it."""

    field: str
    """Name of its field in forms: `limits.concurrent`."""
    label: str
    used: str
    allowed: str
    share: float
    tone: str
    resets: int | None
    """Unix microseconds."""
    suggestion: str
    """A larger limit to start from: half as much again, with two digits."""


def uses(page: TenantPage | Account, currency: str) -> list[Use]:
    """The limits and budgets that are set, in the order of the forms."""
    own = {use.limit: use for use in page.usage or () if use.level == "tenant" and use.would_refuse is None}
    named = [
        _use(field, allowed, own.pop(name, None), page.budget.warn_percent, currency)
        for name, field in LIMITS.items()
        if (allowed := getattr(getattr(page, field.path[0]), name)) is not None
    ]
    known = [use for use in page.usage or () if own.get(use.limit) is use or use.level != "tenant"]
    known += [use for use in page.usage or () if use.level == "tenant" and use.would_refuse is not None]
    return named + [_other(use, page.budget.warn_percent, currency) for use in known]


def _other(use: LimitUse, warn_percent: int, currency: str) -> Use:
    """One of the further limits. They are changed in the form, all together."""

    def amount(value: int | str | None) -> str:
        if value is None:
            return NONE
        return money(value, currency) if use.limit.startswith("money") else number(int(value))

    share = float(use.used or 0) / float(use.allowed) if float(use.allowed) else 0.0
    label = f"{use.level}: {use.limit.replace('_', ' ')}"
    if use.would_refuse is not None:
        label += f" (in shadow: would have refused {use.would_refuse:,} today)"
    return Use(
        "",
        label,
        amount(use.used),
        amount(use.allowed),
        share,
        "bad" if share >= 1 else "warn" if share >= warn_percent / 100 else "",
        use.resets * 1_000_000 if use.resets else None,
        "",
    )


def _use(
    field: OptionField, allowed: int | Decimal, use: LimitUse | None, warn_percent: int, currency: str
) -> Use:
    used = None if use is None else use.used
    share = float(used or 0) / float(allowed) if float(allowed) else 0.0
    warn = warn_percent / 100 if field.path[0] == "budget" else _NEAR
    return Use(
        ".".join(field.path),
        field.label,
        NONE if used is None else _amount(field, used, currency),
        _amount(field, allowed, currency),
        share,
        "bad" if share >= 1 else "warn" if share >= warn else "",
        use.resets * 1_000_000 if use and use.resets else None,
        raised(str(allowed)),
    )


def _amount(field: OptionField, value: Any, currency: str) -> str:
    return money(value, currency) if field.kind == "money" else number(int(value))


def raised(allowed: str) -> str:
    """Half as much again, rounded up to two digits."""
    larger = Decimal(allowed) * Decimal("1.5")
    step = Decimal(1).scaleb(max(larger.adjusted() - 1, 0))
    return format((larger / step).to_integral_value(ROUND_CEILING) * step, "f")


def days(costs: CostReport, now: int) -> Json:
    """Spend by day for charts.js, every day of the last thirty: cost if prices are known, else tokens."""
    first = datetime.fromtimestamp(now // 1_000_000, UTC).date() - timedelta(days=DAYS - 1)
    known = {row.day: row for row in costs.rows}
    dates = [first + timedelta(days=n) for n in range(DAYS)]
    rows = [known.get(date.isoformat(), CostRow(cost=None)) for date in dates]
    if costs.currency:
        series = {"name": "Cost", "unit": costs.currency, "values": [_cost(row) for row in rows]}
    else:
        series = {"name": "Tokens", "unit": "tokens", "values": [_tokens(row) for row in rows]}
    x = [int(datetime(d.year, d.month, d.day, tzinfo=UTC).timestamp()) for d in dates]
    return {"x": x, "series": [series], "kind": "bars"}


def _cost(row: CostRow) -> float:
    return float(row.cost or row.priced_cost or 0)


def _tokens(row: CostRow) -> int:
    return row.prompt_tokens + row.completion_tokens


def day_columns(currency: str) -> list[Column]:
    return [
        Column("day", "Day (UTC)", lambda r: r.day),
        Column("requests", "Requests", lambda r: r.requests, "number"),
        Column("prompt_tokens", "Prompt tokens", lambda r: r.prompt_tokens, "number"),
        Column("completion_tokens", "Output tokens", lambda r: r.completion_tokens, "number"),
        Column(
            "cost",
            f"Cost ({currency})" if currency else "Cost",
            lambda r: r.cost if r.cost is not None else (r.priced_cost if currency else None),
            "money",
        ),
    ]


def tenant_columns(currency: str) -> list[Column]:
    def link(tenant: Tenant) -> Cell:
        return Cell(tenant.name, href=f"/console/tenants/{quote(tenant.name, safe='')}")

    def terms(name: str) -> Callable[[Tenant], str]:
        fields = [field for field in section(name) if field.option.clears]
        return lambda tenant: ", ".join(in_words(getattr(tenant, name), fields, short))

    def short(field: OptionField, value: Any) -> str:
        return (
            compact(value) if field.kind == "count" and value >= 10_000 else _amount(field, value, currency)
        )

    return [
        Column("name", "Tenant", link),
        Column("state", "State", lambda t: Cell(*_state_of_tenant(t)), "badge"),
        Column("weight", "Weight", lambda t: t.weight, "number", "Its share of a busy fleet"),
        Column("limits", "Limits", terms("limits")),
        Column("budget", "Budget", terms("budget")),
        Column("requires", "Requires", lambda t: shown_labels(t.requires)),
        Column("base_access", "Base model", lambda t: "allowed" if t.base_access else "no"),
        Column("created", "Added", lambda t: t.created, "time"),
    ]


def _state_of_tenant(tenant: Tenant) -> tuple[str, str, str]:
    return ("suspended", "", "bad") if tenant.suspended else ("served", "", "good")


def shown_labels(labels: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def key_state(key: Key, now: int) -> tuple[str, str]:
    """Its state, and the tone of that."""
    if key.revoked:
        return ("used" if key.role == "enrolment" else "revoked"), ""
    if key.expires is not None and key.expires <= now:
        return "expired", ""
    if key.replaced_by:
        return "being replaced", "warn"
    return "valid", "good"


def key_columns(now: int, *, tenants: bool, linked: bool = True) -> list[Column]:
    """`tenants`: whether the table has keys of several. `linked`: whether the visitor may see their pages."""
    columns = [
        Column("id", "Key", lambda k: Cell(k.id, href=_key(k.id) if linked else "")),
        Column("label", "Label", lambda k: k.label),
        Column("role", "Role", lambda k: k.role),
        Column("tenant", "Tenant", lambda k: k.tenant),
        Column("state", "State", lambda k: _badge(key_state(k, now)), "badge"),
        Column("scopes", "May do", scopes_in_words),
        Column("last_used", "Last used", lambda k: k.last_used, "time"),
        Column("expires", "Expires", lambda k: k.expires, "time"),
        Column("created", "Created", lambda k: k.created, "time"),
    ]
    return columns if tenants else [c for c in columns if c.name != "tenant"]


def _key(key_id: str) -> str:
    return f"/console/keys/{quote(key_id, safe='')}"


def _badge(state: tuple[str, str]) -> Cell:
    return Cell(state[0], tone=state[1])


def scopes_in_words(key: Key) -> str:
    return ", ".join(in_words(key.scopes, section("scopes", KeyTerms))) or "all of its role"


def _request(request_id: str) -> Cell:
    return Cell(request_id, href=f"/console/requests/{quote(request_id, safe='')}")


ERRORS: Final = [
    Column("failed_at", "When", lambda e: e.failed_at, "time"),
    Column("status", "Status", lambda e: e.status),
    Column("code", "Code", lambda e: Cell(e.code, note=_remedy(e.code))),
    Column("adapter", "Adapter", lambda e: e.adapter or None),
    Column("key", "Key", lambda e: e.key),
    Column("request_id", "Request", lambda e: _request(e.request_id)),
]


def _remedy(code: str) -> str:
    known = CODES.get(code)
    return known.remedy if known else ""


def _adapter(name: str) -> Cell:
    return Cell(name, href=f"/console/adapters/{quote(name)}")


def _problems(adapter: Adapter) -> str | None:
    return ", ".join(f"{problem.version} is {problem.state}" for problem in adapter.trouble) or None


ADAPTERS: Final = [
    Column("adapter", "Adapter", lambda a: _adapter(a.adapter)),
    Column("live", "Live", lambda a: a.live),
    Column("canary", "Canary", lambda a: f"{a.canary.version}, {a.canary.weight} %" if a.canary else None),
    Column("versions", "Versions", lambda a: len(a.versions), "number"),
    Column("loaded", "Loaded", lambda a: Cell("yes" if a.loaded else "no"), "text"),
    Column("trouble", "Problems", lambda a: Cell(_problems(a), tone="bad"), "badge"),
]


def quotas(used: Mapping[str, QuotaUse]) -> list[tuple[str, str]]:
    """What is registered of each quota: its label, and `2 of 5`."""
    return [
        (field.label, " of ".join(written(field.kind, n) for n in (quota.used, quota.limit) if n is not None))
        for field in section("quotas")
        if (quota := used[field.path[-1]]).used is not None or quota.limit is not None
    ]


def policy(policy: RequestPolicy) -> list[tuple[str, str]]:
    """Each field of it with its value in words; empty: as the settings say."""
    return [(field.label, ", ".join(in_words(policy, [field]))) for field in section("policy")]


def forecast(report: Forecast | None, name: str) -> TenantEstimate | None:
    """The tenant's row; None if nothing is known."""
    return next((row for row in report.rows if row.tenant == name), None) if report else None
