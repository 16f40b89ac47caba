"""What pages show of tenants and keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final
from urllib.parse import quote

from gateway.console.formats import compact, money, number
from gateway.console.pages.tenants.forms import BUDGETS, LIMITS, QUOTAS
from gateway.console.tables import Cell, Column
from gateway.errors import CODES

Json = dict[str, Any]
DAYS: Final = 30
"""Shown of the spend by day."""
_NEAR: Final = 0.8
_DEFAULT_WARN: Final = 80
_LABELS: Final = {field.name: field for field in (*LIMITS, *BUDGETS)}


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


def uses(page: Json, currency: str) -> list[Use]:
    """Those that are set, in the order of the forms."""
    counted = {row["limit"]: row for row in page["usage"] or ()}
    found = []
    for name, field in _LABELS.items():
        allowed = page[field.section][name]
        if allowed is None:
            continue
        row = counted.get(name, {"used": None, "resets": None})
        used, cash = row["used"], name.startswith("money")
        share = float(used or 0) / float(allowed) if float(allowed) else 0.0
        warn = page["budget"]["warn_percent"] / 100 if field.section == "budget" else _NEAR
        found.append(
            Use(
                field.form_name,
                field.label,
                "–" if used is None else money(used, currency) if cash else number(int(used)),  # noqa: RUF001
                money(allowed, currency) if cash else number(int(allowed)),
                share,
                "bad" if share >= 1 else "warn" if share >= warn else "",
                row["resets"] * 1_000_000 if row["resets"] else None,
                raised(str(allowed)),
            )
        )
    return found


def raised(allowed: str) -> str:
    """Half as much again, rounded up to two digits."""
    wanted = Decimal(allowed) * Decimal("1.5")
    step = Decimal(1).scaleb(max(wanted.adjusted() - 1, 0))
    return format((wanted / step).to_integral_value(ROUND_CEILING) * step, "f")


def days(costs: Json, now: int) -> Json:
    """Spend by day for charts.js, every day of the last thirty: cost if prices are known, else tokens."""
    first = datetime.fromtimestamp(now // 1_000_000, UTC).date() - timedelta(days=DAYS - 1)
    known = {row["day"]: row for row in costs["rows"]}
    dates = [first + timedelta(days=n) for n in range(DAYS)]
    rows = [known.get(date.isoformat(), {}) for date in dates]
    if costs["currency"]:
        series = {"name": "Cost", "unit": costs["currency"], "values": [_cost(row) for row in rows]}
    else:
        series = {"name": "Tokens", "unit": "tokens", "values": [_tokens(row) for row in rows]}
    x = [int(datetime(d.year, d.month, d.day, tzinfo=UTC).timestamp()) for d in dates]
    return {"x": x, "series": [series], "kind": "bars"}


def _cost(row: Json) -> float:
    return float(row.get("cost") or row.get("priced_cost") or 0)


def _tokens(row: Json) -> int:
    return int(row.get("prompt_tokens", 0)) + int(row.get("completion_tokens", 0))


def day_columns(currency: str) -> list[Column]:
    return [
        Column("day", "Day (UTC)", lambda r: r["day"]),
        Column("requests", "Requests", lambda r: r["requests"], "number"),
        Column("prompt_tokens", "Prompt tokens", lambda r: r["prompt_tokens"], "number"),
        Column("completion_tokens", "Output tokens", lambda r: r["completion_tokens"], "number"),
        Column(
            "cost",
            f"Cost ({currency})" if currency else "Cost",
            lambda r: r["cost"] if r["cost"] is not None else (r["priced_cost"] if currency else None),
            "money",
        ),
    ]


def tenant_columns(currency: str) -> list[Column]:
    def link(t: Json) -> Cell:
        return Cell(t["name"], href=f"/console/tenants/{quote(t['name'], safe='')}")

    return [
        Column("name", "Tenant", link),
        Column("state", "State", lambda t: Cell(*_state_of_tenant(t)), "badge"),
        Column("weight", "Weight", lambda t: t["weight"], "number", "Its share of a busy fleet"),
        Column("limits", "Limits", lambda t: in_words(t["limits"], LIMITS)),
        Column("budget", "Budget", lambda t: in_words(t["budget"], BUDGETS, currency)),
        Column("requires", "Requires", lambda t: shown_labels(t["requires"])),
        Column("base_access", "Base model", lambda t: "allowed" if t["base_access"] else "no"),
        Column("created", "Added", lambda t: t["created"], "time"),
    ]


def _state_of_tenant(tenant: Json) -> tuple[str, str, str]:
    return ("suspended", "", "bad") if tenant["suspended"] else ("served", "", "good")


def in_words(terms: Json, fields: Sequence[Any], currency: str = "") -> str:
    """`600 requests per minute, 4 requests at a time`."""
    found = []
    for field in fields:
        value = terms[field.name]
        if value is not None:
            what = field.label[0].lower() + field.label[1:]
            if field.name.startswith("money"):
                found.append(f"{money(value, currency)} {what.removeprefix('money ')}")
            else:
                found.append(f"{compact(value) if value >= 10_000 else number(value)} {what}")
    return ", ".join(found)


def shown_labels(labels: Json) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def key_state(key: Json, now: int) -> tuple[str, str]:
    """Its state, and the tone of that."""
    if key["revoked"]:
        return ("used" if key["role"] == "enrolment" else "revoked"), ""
    if key["expires"] is not None and key["expires"] <= now:
        return "expired", ""
    if key["replaced_by"]:
        return "being replaced", "warn"
    return "valid", "good"


def key_columns(now: int, *, tenants: bool, linked: bool = True) -> list[Column]:
    """`tenants`: whether the table has keys of several. `linked`: whether the visitor may see their pages."""
    columns = [
        Column("id", "Key", lambda k: Cell(k["id"], href=_key(k["id"]) if linked else "")),
        Column("label", "Label", lambda k: k["label"]),
        Column("role", "Role", lambda k: k["role"]),
        Column("tenant", "Tenant", lambda k: k["tenant"]),
        Column("state", "State", lambda k: _badge(key_state(k, now)), "badge"),
        Column("scopes", "May do", scopes_in_words),
        Column("last_used", "Last used", lambda k: k.get("last_used"), "time"),
        Column("expires", "Expires", lambda k: k["expires"], "time"),
        Column("created", "Created", lambda k: k["created"], "time"),
    ]
    return columns if tenants else [c for c in columns if c.name != "tenant"]


def _key(key_id: str) -> str:
    return f"/console/keys/{quote(key_id, safe='')}"


def _badge(state: tuple[str, str]) -> Cell:
    return Cell(state[0], tone=state[1])


def scopes_in_words(key: Json) -> str:
    scopes = key["scopes"]
    found = ["read only"] if scopes["read_only"] else []
    return ", ".join([*found, *scopes["adapters"], *scopes["endpoints"]]) or "all of its role"


def _request(request_id: str) -> Cell:
    return Cell(request_id, href=f"/console/requests/{quote(request_id, safe='')}")


ERRORS: Final = [
    Column("at", "When", lambda e: e["at"], "time"),
    Column("status", "Status", lambda e: e["status"]),
    Column("code", "Code", lambda e: Cell(e["code"], note=_remedy(e["code"]))),
    Column("adapter", "Adapter", lambda e: e["adapter"] or None),
    Column("key", "Key", lambda e: e["key"]),
    Column("request_id", "Request", lambda e: _request(e["request_id"])),
]


def _remedy(code: str) -> str:
    known = CODES.get(code)
    return known.remedy if known else ""


def _adapter(name: str) -> Cell:
    return Cell(name, href=f"/console/adapters/{quote(name)}")


def _problems(adapter: Json) -> str | None:
    return ", ".join(f"{one['version']} is {one['state']}" for one in adapter["trouble"]) or None


ADAPTERS: Final = [
    Column("adapter", "Adapter", lambda a: _adapter(a["adapter"])),
    Column("live", "Live", lambda a: a["live"]),
    Column(
        "canary",
        "Canary",
        lambda a: f"{a['canary']['version']}, {a['canary']['weight']} %" if a["canary"] else None,
    ),
    Column("versions", "Versions", lambda a: len(a["versions"]), "number"),
    Column("loaded", "Loaded", lambda a: Cell("yes" if a["loaded"] else "no"), "text"),
    Column("trouble", "Problems", lambda a: Cell(_problems(a), tone="bad"), "badge"),
]


@dataclass(frozen=True, slots=True)
class Quota:
    label: str
    used: Any
    limit: Any
    bytes: bool


def quota_rows(used: Json) -> list[Quota]:
    return [
        Quota(f.label, used[f.name]["used"], used[f.name]["limit"], f.name == "bytes")
        for f in QUOTAS
        if used[f.name]["used"] is not None or used[f.name]["limit"] is not None
    ]


def forecast(report: Json | None, name: str) -> Json | None:
    """The tenant's row, with its currency; None if nothing is known."""
    if report is None:
        return None
    row = next((row for row in report["rows"] if row["tenant"] == name), None)
    return None if row is None else row | {"currency": report["currency"] or "", "month": report["month"]}
