"""Months: what closing would bill, closing, verification, statements and files."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.pages.money.shared import cents, month_name, short_seal, tabs
from gateway.console.tables import Cell, Column
from gateway.console.visit import BOOKS, STAFF, Forwarded, Route, Visit
from gateway.costs.closing.schemas import (
    ClosingPreview,
    Month,
    PreviewedStatement,
    StatementSums,
    Verification,
)
from gateway.costs.reconciliation.schemas.bills import Bill
from gateway.costs.reconciliation.schemas.reconciliation import Reconciliation, TokenCheck
from gateway.schemas.base import Json, Listed
from gateway.units import NANO, amount_text

_Statement = StatementSums | PreviewedStatement

_TONES: Final = {"closed": "good", "closing": "info", "open": "", "changed": "bad"}
_BUCKETS: Final = {
    "usage": "Requests",
    "retry_waste": "Repeated requests",
    "corrections": "Corrections",
    "headroom": "Spare capacity",
    "startup": "Start-up",
    "idle": "Idle time",
}


async def months(visit: Visit) -> Response:
    known_months = await visit.api.get("/finance/v1/periods", Listed[Month])
    columns = [
        Column("month", "Month", _link),
        Column("state", "State", lambda m: Cell(m.state, tone=_TONES[m.state]), "badge"),
        Column("closed_at", "Closed", lambda m: (m.closed_at or "")[:10] or None),
        *([Column("closed_by", "By", lambda m: m.closed_by)] if visit.tenant is None else []),
        Column("seal", "Seal", short_seal, "code", "Covers the month, and the seal of the month before."),
    ]
    table = visit.table(columns, known_months.data, sort="-month")
    if file := visit.export(table, "months"):
        return file
    return visit.page("money_months.html.j2", tabs=tabs(visit, ""), table=table)


def _link(month: Month) -> Cell:
    name = month.month
    return Cell(name, href=f"/console/money/months/{name}", text=month_name(name))


async def month(visit: Visit) -> Response:
    name = visit.params["month"]
    period = await visit.api.get(f"/finance/v1/periods/{quote(name)}", Month)
    preview = None
    if visit.tenant is None and period.state == "open":
        preview = await visit.api.get(f"/finance/v1/periods/{quote(name)}/preview", ClosingPreview)
    shown = preview or period
    currency = shown.currency or ""
    table = visit.table(
        _statements(visit, name, currency, sealed=preview is None), shown.statements or (), sort="-amount"
    )
    if file := visit.export(table, f"statements-{name}"):
        return file
    return visit.page(
        "money_month.html.j2",
        tabs=tabs(visit, name),
        month=name,
        period=period,
        preview=preview,
        currency=currency,
        buckets=_buckets(shown),
        total=amount_text(shown.totals.cost) if shown.totals else None,
        table=table,
        tone=_TONES[period.state],
        closing=period.state == "closing" or (period.state == "open" and bool(visit.query.get("closing"))),
    )


def _statements(visit: Visit, month: str, currency: str, *, sealed: bool) -> list[Column]:
    def link(row: _Statement) -> Cell:
        there = f"/console/money/months/{month}/statements/{quote(row.tenant)}"
        return Cell(row.tenant, href=there, text=f"Statement of {row.tenant}", document=True)

    def file(row: _Statement) -> Cell:
        name = f"statement-{month}-{row.tenant}.html"
        there = f"/console/money/months/{month}/statements/{quote(row.tenant)}"
        return Cell(name, href=there, text="Download", download=name)

    def cost(row: _Statement) -> str | None:
        return row.cost if isinstance(row, StatementSums) else amount_text(row.cost)

    def charged(row: _Statement) -> str | None:
        if isinstance(row, StatementSums):
            return cents(row.amount_cents if row.charged_cents is None else row.charged_cents)
        return cents(row.due_cents)

    columns = [Column("tenant", "Tenant", link)]
    if visit.tenant is None:
        columns.append(Column("cost", f"Cost {currency}".rstrip(), cost, "money", currency=currency))
    columns.append(Column("amount", f"Charged {currency}".rstrip(), charged, "money", currency=currency))
    if sealed:
        columns += [
            Column("records", "Records", lambda row: row.records, "number"),
            Column("seal", "Seal of its records", short_seal, "code"),
        ]
    columns.append(Column("file", "File", file))
    return columns


def _buckets(month: Month | ClosingPreview) -> list[tuple[str, float, str]]:
    """(name, GPU-hours, cost) of each part of the month."""
    order, buckets = list(_BUCKETS), month.totals.buckets if month.totals else {}
    names = sorted(buckets, key=lambda name: order.index(name) if name in order else len(order))
    return [
        (
            _BUCKETS.get(name, name.replace("_", " ")),
            buckets[name].nano_gpu_hours / NANO,
            amount_text(buckets[name].cost),
        )
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
    closed = await visit.api.post(f"/finance/v1/periods/{quote(name)}/close", terms, Month)
    there = f"/console/money/months/{name}"
    if closed.request is not None:
        by = closed.request.requested_by
        return visit.see(there, f"{by} requested to close {month_name(name)}: another person closes it.")
    if closed.state != "closed":
        return visit.see(f"{there}?closing=1", f"{month_name(name)} is being closed.")
    return visit.see(there, f"{month_name(name)} is closed: its figures never change again.")


async def progress(visit: Visit) -> Response:
    """The state of a closing, as it goes on."""
    name = quote(visit.params["month"])

    async def draw() -> str:
        period = await visit.api.get(f"/finance/v1/periods/{name}", Month)
        return visit.renderer.render("money_progress.html.j2", visit=visit, period=period)

    return await visit.live(draw)


async def verify(visit: Visit) -> Response:
    name = visit.params["month"]
    path, quick = f"/finance/v1/periods/{quote(name)}/verify", "true" if visit.text("quick") else None
    verification = await visit.api.get(path, Verification, quick=quick)
    return visit.page("money_verified.html.j2", month=name, verification=verification, tabs=tabs(visit, name))


async def statement(visit: Visit) -> Response:
    """The statement itself: a page of its own that prints on one sheet, or its figures."""
    form = "json" if visit.query.get("format") == "json" else None
    tenant, name = visit.params["tenant"], visit.params["month"]
    query = {"month": name, "format": form, "currency": visit.query.get("currency")}
    return Forwarded(visit.api, "GET", f"/finance/v1/statements/{tenant}", query=query)


async def proof(visit: Visit) -> Response:
    tenant, name = visit.params["tenant"], visit.params["month"]
    answer = await visit.api.call("GET", f"/finance/v1/periods/{quote(name)}/proof", query={"tenant": tenant})
    headers = {"content-disposition": f'attachment; filename="proof-{name}-{quote(tenant)}.json"'}
    return Response(bytes(answer.body), media_type="application/json", headers=headers)


async def export(visit: Visit) -> Response:
    query = {
        name: visit.query.get(name) for name in ("format", "dataset", "granularity", "tenant", "parquet")
    }
    return Forwarded(visit.api, "GET", "/finance/v1/export", query={"month": visit.params["month"], **query})


async def reconciliation(visit: Visit) -> Response:
    """Whether the month agrees with the engines' own counters and with the provider's bill."""
    name = visit.params["month"]
    report, bills = await asyncio.gather(
        visit.api.get("/finance/v1/reconciliation", Reconciliation, month=name),
        visit.api.get("/finance/v1/bills", Listed[Bill]),
    )
    columns = [
        Column("engine", "Engine", lambda c: c.engine),
        Column("token_type", "Tokens", lambda c: c.token_type),
        Column("engine_tokens", "Engine counted", lambda c: c.engine_tokens, "number"),
        Column("record_tokens", "Recorded", lambda c: c.record_tokens, "number"),
        Column("difference", "Difference", lambda c: c.difference, "number"),
        Column("unexplained", "Unexplained", lambda c: c.unexplained, "number"),
        Column("verdict", "Verdict", _verdict, "badge"),
    ]
    table = visit.table(columns, report.tokens.checks)
    if file := visit.export(table, f"reconciliation-{name}"):
        return file
    return visit.page(
        "money_reconciliation.html.j2",
        tabs=tabs(visit, name),
        month=name,
        report=report,
        bills=bills.data,
        table=table,
    )


def _verdict(check: TokenCheck) -> Cell:
    return Cell(check.verdict, tone="good" if check.verdict == "matched" else "warn")


ROUTES = (
    Route("/money/months", months),
    Route("/money/months/{month}", month, slow=True),
    Route("/money/months/{month}/progress", progress, BOOKS),
    Route("/money/months/{month}/close", close, STAFF, "POST"),
    Route("/money/months/{month}/verify", verify, BOOKS, "POST"),
    Route("/money/months/{month}/reconciliation", reconciliation, BOOKS, slow=True),
    Route("/money/months/{month}/export", export),
    Route("/money/months/{month}/statements/{tenant}", statement),
    Route("/money/months/{month}/proofs/{tenant}", proof),
)
