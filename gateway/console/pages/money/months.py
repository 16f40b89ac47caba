"""Months: what closing would bill, closing, verification, statements and files."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.pages.money.shared import Json, cents, month_name, short_seal, tabs
from gateway.console.tables import Cell, Column
from gateway.console.visit import STAFF, Forwarded, Route, Visit

_TONES: Final = {"closed": "good", "closing": "info", "open": ""}
_ABSENT: Final[Json] = dict.fromkeys(
    ("closed_at", "closed_by", "seal", "previous_seal", "records", "progress")
)
"""Fields that an open month has not."""
_BUCKETS: Final = {
    "usage": "Requests",
    "retry_waste": "Repeated requests",
    "corrections": "Corrections",
    "headroom": "Spare capacity",
    "startup": "Start-up",
    "idle": "Idle time",
}


async def months(visit: Visit) -> Response:
    periods = (await visit.api.get("/finance/v1/periods"))["data"]
    columns = [
        Column("month", "Month", _link),
        Column("state", "State", lambda p: Cell(p["state"], tone=_TONES[p["state"]]), "badge"),
        Column("closed_at", "Closed", lambda p: (p.get("closed_at") or "")[:10] or None),
        *([Column("closed_by", "By", lambda p: p.get("closed_by"))] if visit.tenant is None else []),
        Column("seal", "Seal", short_seal, "code", "Covers the month, and the seal of the month before."),
    ]
    table = visit.table(columns, periods, sort="-month")
    if found := visit.export(table, "months"):
        return found
    return visit.page("money_months.html.j2", tabs=tabs(visit, ""), table=table)


def _link(period: Json) -> Cell:
    name = period["month"]
    return Cell(name, href=f"/console/money/months/{name}", text=month_name(name))


async def month(visit: Visit) -> Response:
    name = visit.params["month"]
    period = _ABSENT | await visit.api.get(f"/finance/v1/periods/{quote(name)}")
    preview = None
    if visit.tenant is None and period["state"] == "open":
        preview = await visit.api.get(f"/finance/v1/periods/{quote(name)}/preview")
    shown = preview or period
    currency = shown.get("currency") or ""
    table = visit.table(_statements(visit, name, currency), shown.get("statements") or [], sort="-amount")
    if found := visit.export(table, f"statements-{name}"):
        return found
    return visit.page(
        "money_month.html.j2",
        tabs=tabs(visit, name),
        month=name,
        period=period,
        preview=preview,
        currency=currency,
        buckets=_buckets((shown.get("totals") or {}).get("buckets") or {}),
        total=(shown.get("totals") or {}).get("cost"),
        table=table,
        tone=_TONES[period["state"]],
        closing=period["state"] == "closing"
        or (period["state"] == "open" and bool(visit.query.get("closing"))),
    )


def _statements(visit: Visit, month: str, currency: str) -> list[Column]:
    def link(row: Json) -> Cell:
        there = f"/console/money/months/{month}/statements/{quote(row['tenant'])}"
        return Cell(row["tenant"], href=there, text=f"Statement of {row['tenant']}", document=True)

    def file(row: Json) -> Cell:
        name = f"statement-{month}-{row['tenant']}.html"
        there = f"/console/money/months/{month}/statements/{quote(row['tenant'])}"
        return Cell(name, href=there, text="Download", download=name)

    def charged(row: Json) -> Any:
        found = row.get("charged_cents")
        return cents(row["amount_cents"] if found is None else found)

    columns = [Column("tenant", "Tenant", link)]
    if visit.tenant is None:
        columns.append(Column("cost", f"Cost {currency}".rstrip(), lambda row: row.get("cost"), "money"))
    columns += [
        Column("amount", f"Charged {currency}".rstrip(), charged, "money"),
        Column("records", "Records", lambda row: row.get("records"), "number"),
        Column("seal", "Seal of its records", short_seal, "code"),
        Column("file", "File", file),
    ]
    return columns


def _buckets(found: Json) -> list[tuple[str, float, str]]:
    """(name, GPU-hours, cost) of each part of the month."""
    order = list(_BUCKETS)
    names = sorted(found, key=lambda name: order.index(name) if name in order else len(order))
    return [
        (_BUCKETS.get(name, name.replace("_", " ")), found[name]["nano_gpu_hours"] / 1e9, found[name]["cost"])
        for name in names
    ]


async def close(visit: Visit) -> Response:
    """Closing takes a while for large months: then the page says how far it is."""
    name = visit.params["month"]
    if visit.text("confirm") != name:
        raise ApiError(400, "invalid_value", f"To close the month, type {name}.", "confirm")
    terms: Json = {"allow_missing_prices": bool(visit.text("allow_missing_prices"))}
    if policy := visit.text("policy"):
        terms["policy"] = policy
    closed = await visit.api.post(f"/finance/v1/periods/{quote(name)}/close", terms)
    there = f"/console/money/months/{name}"
    if closed["state"] != "closed":
        return visit.see(f"{there}?closing=1", f"{month_name(name)} is being closed.")
    return visit.see(there, f"{month_name(name)} is closed: its figures never change again.")


async def progress(visit: Visit) -> Response:
    """The state of a closing, as it goes on."""
    name = quote(visit.params["month"])

    async def draw() -> str:
        period = _ABSENT | await visit.api.get(f"/finance/v1/periods/{name}")
        return visit.renderer.render("money_progress.html.j2", visit=visit, period=period)

    return await visit.live(draw)


async def verify(visit: Visit) -> Response:
    name = visit.params["month"]
    found = await visit.api.get(
        f"/finance/v1/periods/{quote(name)}/verify", quick="true" if visit.text("quick") else None
    )
    return visit.page("money_verified.html.j2", month=name, found=found, tabs=tabs(visit, name))


async def statement(visit: Visit) -> Response:
    """The statement itself: a page of its own that prints on one sheet, or its figures."""
    form = "json" if visit.query.get("format") == "json" else None
    tenant, name = visit.params["tenant"], visit.params["month"]
    query = {"month": name, "format": form, "currency": visit.query.get("currency")}
    return Forwarded(visit.api, "GET", f"/finance/v1/statements/{tenant}", query=query)


async def proof(visit: Visit) -> Response:
    tenant, name = visit.params["tenant"], visit.params["month"]
    found = await visit.api.call("GET", f"/finance/v1/periods/{quote(name)}/proof", query={"tenant": tenant})
    headers = {"content-disposition": f'attachment; filename="proof-{name}-{quote(tenant)}.json"'}
    return Response(bytes(found.body), media_type="application/json", headers=headers)


async def export(visit: Visit) -> Response:
    query = {
        name: visit.query.get(name) for name in ("format", "dataset", "granularity", "tenant", "parquet")
    }
    return Forwarded(visit.api, "GET", "/finance/v1/export", query={"month": visit.params["month"], **query})


async def reconciliation(visit: Visit) -> Response:
    """Whether the month agrees with the engines' own counters and with the provider's bill."""
    name = visit.params["month"]
    found, bills = await asyncio.gather(
        visit.api.get("/finance/v1/reconciliation", month=name), visit.api.get("/finance/v1/bills")
    )
    columns = [
        Column("engine", "Engine", lambda c: c["engine"]),
        Column("token_type", "Tokens", lambda c: c["token_type"]),
        Column("engine_tokens", "Engine counted", lambda c: c["engine_tokens"], "number"),
        Column("record_tokens", "Recorded", lambda c: c["record_tokens"], "number"),
        Column("difference", "Difference", lambda c: c["difference"], "number"),
        Column("unexplained", "Unexplained", lambda c: c["unexplained"], "number"),
        Column("verdict", "Verdict", _verdict, "badge"),
    ]
    table = visit.table(columns, found["tokens"]["checks"])
    if file := visit.export(table, f"reconciliation-{name}"):
        return file
    return visit.page(
        "money_reconciliation.html.j2",
        tabs=tabs(visit, name),
        month=name,
        found=found,
        bills=bills["data"],
        table=table,
    )


def _verdict(check: Json) -> Cell:
    return Cell(check["verdict"], tone="good" if check["verdict"] == "matched" else "warn")


ROUTES = (
    Route("/money/months", months),
    Route("/money/months/{month}", month, slow=True),
    Route("/money/months/{month}/progress", progress, STAFF),
    Route("/money/months/{month}/close", close, STAFF, "POST"),
    Route("/money/months/{month}/verify", verify, STAFF, "POST"),
    Route("/money/months/{month}/reconciliation", reconciliation, STAFF, slow=True),
    Route("/money/months/{month}/export", export),
    Route("/money/months/{month}/statements/{tenant}", statement),
    Route("/money/months/{month}/proofs/{tenant}", proof),
)
