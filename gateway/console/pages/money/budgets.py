"""Budgets, forecasts, alerts and anomalies."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import Response

from gateway.console.api_client import nothing
from gateway.console.formats import money
from gateway.console.forms import body_of, fields_of
from gateway.console.pages.money.shared import amount, choices, month_of, tabs, tenant_link
from gateway.console.tables import Cell, Column
from gateway.console.visit import STAFF, Route, Visit
from gateway.costs.closing.schemas import Month
from gateway.costs.forecasting.schemas import (
    Alerts,
    Anomalies,
    Anomaly,
    ChangedBudget,
    Estimate,
    Forecast,
    NewBudget,
)
from gateway.schemas.base import Listed

_STATUS: Final = {
    "within": ("within", "good"),
    "warning": ("near its budget", "warn"),
    "forecast_over": ("will exceed it", "warn"),
    "reached": ("reached", "bad"),
}


async def budgets(visit: Visit) -> Response:
    month = month_of(visit)
    staff = visit.tenant is None
    forecast, alerts, known_months, anomalies = await asyncio.gather(
        visit.api.get("/finance/v1/forecast", Forecast, month=month),
        visit.api.get("/finance/v1/alerts", Alerts),
        visit.api.get("/finance/v1/periods", Listed[Month]),
        visit.api.get("/finance/v1/anomalies", Anomalies) if staff else nothing(),
    )
    currency = forecast.currency or ""
    columns = [
        Column("tenant", "Tenant", tenant_link),
        Column("so_far", "So far", lambda r: r.so_far, "money"),
        Column("expected", "Expected", _expected, "money", "By the month's end, and between which amounts."),
        Column("budget", "Budget", lambda r: r.budget, "money"),
        Column("used_percent", "Used %", lambda r: r.used_percent, "money"),
        Column("status", "Status", _status, "badge"),
        Column("priced_by", "Terms", _terms, help="Cost, or what the tenant's rate card charges."),
    ]
    table = visit.table(columns, forecast.rows, sort="-expected")
    if file := visit.export(table, f"budgets-{month}"):
        return file
    return visit.page(
        "money_budgets.html.j2",
        tabs=tabs(visit, month),
        month=month,
        months=choices(known_months, month, visit.now),
        forecast=forecast,
        currency=currency,
        table=table,
        fields=fields_of(NewBudget),
        alerts=alerts.data,
        anomalies=[_about(anomaly) for anomaly in anomalies.data] if anomalies else [],
        installation=forecast.installation,
        share=_share(forecast.installation),
    )


def _expected(row: Estimate) -> Cell:
    sure = row.low is None or row.low == row.high
    return Cell(row.expected, note="" if sure else f"{row.low} to {row.high}")


def _terms(row: Estimate) -> str:
    return "charge" if row.priced_by == "rate_card" else "cost"


def _status(row: Estimate) -> Cell | None:
    if row.status is None:
        return None
    text, tone = _STATUS[row.status]
    return Cell(row.status, text=text, tone=tone)


def _about(anomaly: Anomaly) -> str:
    if anomaly.kind == "engine":
        return f"engine {anomaly.subject} was idle for {float(anomaly.ratio):.0%} of {anomaly.day}"
    habit = f", {float(anomaly.ratio):.1f} times the usual" if anomaly.ratio else ""
    verb = "is charged" if anomaly.priced_by == "rate_card" else "cost"
    return f"{anomaly.kind} {anomaly.subject} {verb} {money(anomaly.cost)} on {anomaly.day}{habit}"


def _share(installation: Estimate | None) -> float | None:
    """How much of its budget is used; None: it has none."""
    if installation is None or not amount(installation.budget):
        return None
    return float(amount(installation.so_far) / amount(installation.budget))


async def put(visit: Visit) -> Response:
    body = body_of(NewBudget, visit.text)
    budget = await visit.api.put("/finance/v1/budgets", body, ChangedBudget)
    whose = budget.tenant or "the whole installation"
    return visit.see("/console/money/budgets", f"The budget of {whose} is {budget.amount or 'removed'}.")


ROUTES = (
    Route("/money/budgets", budgets),
    Route("/money/budgets", put, STAFF, "POST"),
)
