"""What each customer used and cost in a month, how busy the GPUs were, and what is earned."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.pages.money.shared import (
    amount,
    chart,
    choices,
    daily,
    month_of,
    tabs,
    tenant_link,
    utilization_by_day,
)
from gateway.console.tables import Cell, Column
from gateway.console.visit import BOOKS, Route, Visit
from gateway.costs.closing.schemas import Month
from gateway.costs.margins.schemas import MarginReport
from gateway.costs.reports.schemas.costs import CostReport, CostRow
from gateway.schemas.base import Listed

_GROUPS: Final = {
    "tenant": "Tenant",
    "adapter": "Adapter",
    "gpu_type": "GPU type",
    "tenant,adapter,gpu_type": "Tenant, adapter and GPU type",
    "day": "Day",
    "cost_centre": "Cost centre",
    "key": "Key",
}
_HIDDEN: Final = frozenset({"gpu_type", "tenant,adapter,gpu_type", "tenant"})
"""Groups that say nothing to a tenant, or that it does not see."""
_TITLES: Final = {
    "tenant": "Tenant",
    "adapter": "Adapter",
    "gpu_type": "GPU type",
    "day": "Day",
    "cost_centre": "Cost centre",
    "key": "Key",
}


async def overview(visit: Visit) -> Response:
    month = month_of(visit)
    tenant = visit.tenant is not None
    groups = {name: title for name, title in _GROUPS.items() if not (tenant and name in _HIDDEN)}
    by = visit.query.get("by", "adapter" if tenant else "tenant")
    if by not in groups:
        raise ApiError(400, "invalid_value", f"Costs cannot be grouped by {by[:60]!r} here.", "by")
    over = "adapter" if tenant else "tenant"
    report, days, months = await asyncio.gather(
        visit.api.get("/finance/v1/costs", CostReport, month=month, by=by, limit=10_000),
        visit.api.get("/finance/v1/costs", CostReport, month=month, by=f"day,{over}", limit=10_000),
        visit.api.get("/finance/v1/periods", Listed[Month]),
    )
    currency = report.currency or ""
    table = visit.table(
        _columns(by.split(","), currency, report, gpu=not tenant), report.rows, sort="-cost", size=25
    )
    if file := visit.export(table, f"costs-{month}"):
        return file
    names, lines = daily(
        (row.dimension("day"), row.dimension(over), float(row.cost or 0)) for row in days.rows
    )
    return visit.page(
        "money_costs.html.j2",
        tabs=tabs(visit, month),
        month=month,
        months=choices(months, month, visit.now),
        by=by,
        groups=list(groups.items()),
        report=report,
        currency=currency,
        table=table,
        tiles=_tiles(report, currency),
        outside=[] if tenant else _outside(report),
        chart=chart(names, lines, currency, "bars") if any(sum(values) for _, values in lines) else None,
        chart_table=_days_table(visit, names, lines, currency),
        command=f"florin cost report --month {month} --by {by}",
    )


def _columns(dimensions: list[str], currency: str, report: CostReport, *, gpu: bool) -> list[Column]:
    labels = report.key_labels

    def dimension(name: str) -> Column:
        def value(row: CostRow) -> Any:
            text = row.dimension(name)
            if name == "adapter" and "/" in text:
                return Cell(text, href=f"/console/adapters/{quote(text)}")
            if name == "tenant" and text:
                return Cell(text, href=f"/console/tenants/{quote(text)}")
            if name == "key" and text in labels:
                return Cell(text, note=labels[text])
            return text or Cell(text, text="(none)")

        return Column(name, _TITLES[name], value)

    columns = [dimension(name) for name in dimensions]
    columns += [
        Column("requests", "Requests", lambda row: row.requests, "number"),
        Column("prompt_tokens", "Input tokens", lambda row: row.prompt_tokens, "number"),
        Column("cached_tokens", "Cached", lambda row: row.cached_tokens, "number", "Read from a cache."),
        Column("completion_tokens", "Output tokens", lambda row: row.completion_tokens, "number"),
    ]
    if gpu:
        columns.append(Column("gpu_hours", "GPU-hours", lambda row: float(row.gpu_hours), "number"))
    columns.append(
        Column("cost", f"Cost {currency}".rstrip(), lambda row: _cost(row.cost), "money", currency=currency)
    )
    return columns


def _cost(text: str | None) -> Cell:
    return Cell(None, text="no price") if text is None else Cell(text)


def _tiles(report: CostReport, currency: str) -> list[tuple[str, Any, str]]:
    """(label, value, note)."""
    totals = report.totals
    tiles: list[tuple[str, Any, str]] = [
        ("Cost of requests", (totals.cost, currency), "" if totals.cost else "some GPU time has no price"),
        ("Requests", totals.requests, ""),
        ("Input tokens", totals.prompt_tokens, f"{totals.cached_tokens:,} of them cached"),
        ("Output tokens", totals.completion_tokens, ""),
    ]
    if report.provisioned is not None:
        overall = (report.provisioned.cost, currency)
        tiles.insert(0, ("GPUs cost in all", overall, "with idle time and repeated requests"))
    return tiles


def _outside(report: CostReport) -> list[tuple[str, str, Any, Any]]:
    """What no request of a customer cost: (name, meaning, GPU-hours, cost). With the requests' cost they sum
    to the whole."""
    parts = (
        (report.retry_waste, "Repeated requests", "Attempts whose answer was not delivered."),
        (report.corrections, "Corrections", "Changes to months that are closed."),
        (report.headroom, "Spare capacity", "Engines that were kept free on purpose."),
        (report.startup, "Start-up", "Engines that were starting."),
        (report.idle, "Idle time", "Engines that waited for work."),
    )
    return [
        (title, meaning, float(totals.gpu_hours or 0), totals.cost)
        for part, title, meaning in parts
        if part is not None and (totals := part.totals)
        if totals.nano_gpu_hours or totals.cost is None or amount(totals.cost)
    ]


def _days_table(visit: Visit, days: list[str], lines: list[tuple[str, list[float]]], currency: str) -> Any:
    """What the chart shows, for those who cannot see it."""

    def of(n: int) -> Callable[[Any], str]:
        return lambda row: f"{row[n]:.2f}"

    columns = [Column("day", "Day", lambda row: row[0])]
    columns += [
        Column(f"g{n}", f"{name} {currency}".rstrip(), of(n), "money", currency=currency)
        for n, (name, _) in enumerate(lines, start=1)
    ]
    rows = [(day, *(values[n] for _, values in lines)) for n, day in enumerate(days)]
    return visit.table(columns, rows, name="days", size=31)


async def utilization(visit: Visit) -> Response:
    month = month_of(visit)
    report, months = await asyncio.gather(
        visit.api.get("/finance/v1/costs", CostReport, month=month, by="day,gpu_type", limit=10_000),
        visit.api.get("/finance/v1/periods", Listed[Month]),
    )
    currency = report.currency or ""
    rows = utilization_by_day(report)
    columns = [
        Column("day", "Day", lambda row: row.day),
        Column("gpu_type", "GPU type", lambda row: row.gpu_type),
        Column("provisioned", "Provisioned GPU-hours", lambda row: row.provisioned, "number"),
        Column("busy", "Busy GPU-hours", lambda row: row.busy, "number"),
        Column("share", "Utilization", lambda row: row.share, "percent"),
        Column(
            "unused_cost",
            f"Unused {currency}".rstrip(),
            lambda row: row.unused_cost,
            "money",
            currency=currency,
        ),
    ]
    table = visit.table(columns, rows, sort="-day", size=31)
    if file := visit.export(table, f"utilization-{month}"):
        return file
    days, lines = daily((row.day, row.gpu_type, 100 * (row.share or 0)) for row in rows)
    return visit.page(
        "money_utilization.html.j2",
        tabs=tabs(visit, month),
        month=month,
        months=choices(months, month, visit.now),
        types=report.utilization,
        report=report,
        currency=currency,
        table=table,
        chart=chart(days, lines, "%", "lines") if days else None,
    )


async def margin(visit: Visit) -> Response:
    month = month_of(visit)
    by = "adapter" if visit.query.get("by") == "adapter" else "tenant"
    report, months = await asyncio.gather(
        visit.api.get("/finance/v1/margin", MarginReport, month=month, by=by),
        visit.api.get("/finance/v1/periods", Listed[Month]),
    )
    currency = report.currency or ""
    rows = (report.adapters or ()) if by == "adapter" else report.rows

    def money(name: str, title: str, about: str = "") -> Column:
        return Column(name, title, attrgetter(name), "money", about)

    columns = [
        Column("tenant", "Tenant", tenant_link),
        Column("adapter", "Adapter", lambda row: row.adapter)
        if by == "adapter"
        else Column("rate_card", "Rate card", lambda row: row.rate_card or Cell("", text="at cost")),
        money("price", "Price"),
        money("cost", "Cost"),
        money("margin", "Margin"),
        Column("margin_percent", "Margin %", lambda row: row.margin_percent, "money"),
    ]
    table = visit.table(columns, rows, sort="-margin")
    if file := visit.export(table, f"margin-{month}"):
        return file
    return visit.page(
        "money_margin.html.j2",
        tabs=tabs(visit, month),
        month=month,
        months=choices(months, month, visit.now),
        by=by,
        report=report,
        currency=currency,
        table=table,
        command=f"florin cost margin --month {shlex.quote(month)} --by {by}",
    )


ROUTES = (
    Route("/money", overview, slow=True),
    Route("/money/utilization", utilization, BOOKS, slow=True),
    Route("/money/margin", margin, BOOKS, slow=True),
)
