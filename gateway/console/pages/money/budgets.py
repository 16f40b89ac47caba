"""Budgets, forecasts, alerts and anomalies."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import Response

from gateway.console.formats import money
from gateway.console.pages.money.shared import Json, amount, choices, month_of, tabs, tenant_link
from gateway.console.tables import Cell, Column
from gateway.console.visit import STAFF, Route, Visit

_STATUS: Final = {
    "within": ("within", "good"),
    "warning": ("near its budget", "warn"),
    "forecast_over": ("will exceed it", "warn"),
    "reached": ("reached", "bad"),
}


async def budgets(visit: Visit) -> Response:
    month = month_of(visit)
    staff = visit.tenant is None
    forecast, alerts, periods, anomalies = await asyncio.gather(
        visit.api.get("/finance/v1/forecast", month=month),
        visit.api.get("/finance/v1/alerts"),
        visit.api.get("/finance/v1/periods"),
        visit.api.get("/finance/v1/anomalies") if staff else _nothing(),
    )
    currency = forecast["currency"] or ""
    columns = [
        Column("tenant", "Tenant", tenant_link),
        Column("so_far", "So far", lambda r: r["so_far"], "money"),
        Column("expected", "Expected", _expected, "money", "By the month's end, and between which amounts."),
        Column("budget", "Budget", lambda r: r["budget"], "money"),
        Column("used_percent", "Used %", lambda r: r["used_percent"], "money"),
        Column("status", "Status", _status, "badge"),
    ]
    table = visit.table(columns, forecast["rows"], sort="-expected")
    if found := visit.export(table, f"budgets-{month}"):
        return found
    return visit.page(
        "money_budgets.html.j2",
        tabs=tabs(visit, month),
        month=month,
        months=choices((p["month"] for p in periods["data"]), month, visit.now),
        forecast=forecast,
        currency=currency,
        table=table,
        alerts=[(alert, _about(alert["data"])) for alert in alerts["data"]],
        anomalies=[(anomaly, _about(anomaly)) for anomaly in anomalies["data"]],
        whole=forecast.get("whole"),
        share=_share(forecast.get("whole")),
    )


async def _nothing() -> Json:
    return {"data": []}


def _expected(row: Json) -> Cell:
    sure = row["low"] is None or row["low"] == row["high"]
    return Cell(row["expected"], note="" if sure else f"{row['low']} to {row['high']}")


def _status(row: Json) -> Cell | None:
    text, tone = _STATUS.get(row["status"] or "", (row["status"], ""))
    return Cell(row["status"], text=text, tone=tone) if text else None


def _about(data: Json) -> str:
    """What an alert or anomaly is about, in a sentence."""
    if "budget" in data:
        return f"{data['month']}: {money(data['so_far'], data['currency'])} of {money(data['budget'])} used"
    if data["kind"] == "engine":
        return f"engine {data['subject']} was idle for {float(data['ratio']):.0%} of {data['day']}"
    habit = f", {float(data['ratio']):.1f} times the usual" if data["ratio"] else ""
    return f"{data['kind']} {data['subject']} cost {money(data['cost'])} on {data['day']}{habit}"


def _share(whole: Any) -> float | None:
    """How much of the installation's budget is used; None: it has none."""
    if not whole or not whole.get("budget") or not amount(whole["budget"]):
        return None
    return float(amount(whole["so_far"]) / amount(whole["budget"]))


async def put(visit: Visit) -> Response:
    tenant = visit.text("tenant") or None
    body: Json = {"tenant": tenant, "amount": visit.text("amount") or None}
    if first := visit.text("from"):
        body["from"] = first
    if percent := visit.text("warn_percent"):
        body["warn_percent"] = int(percent) if percent.isascii() and percent.isdigit() else percent
    await visit.api.put("/finance/v1/budgets", body)
    whose = tenant or "the whole installation"
    said = f"The budget of {whose} is {body['amount'] or 'removed'}."
    return visit.see("/console/money/budgets", said)


ROUTES = (
    Route("/money/budgets", budgets),
    Route("/money/budgets", put, STAFF, "POST"),
)
