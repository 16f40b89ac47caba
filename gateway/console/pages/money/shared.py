"""Common to the pages about money: months, tabs, and figures of reports. Pure, but for `month_of`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, Protocol
from urllib.parse import quote

from gateway.console.api_client import ApiError
from gateway.console.tables import Cell
from gateway.console.visit import Visit
from gateway.costs.closing.schemas import Month
from gateway.costs.reports.schemas.costs import CostReport
from gateway.schemas.base import Json, Listed
from gateway.units import NANO, decimal_text

ZERO: Final = Decimal(0)


class _OfTenant(Protocol):
    @property
    def tenant(self) -> str: ...


class _Sealed(Protocol):
    @property
    def seal(self) -> str | None: ...


def month_of(visit: Visit) -> str:
    """The month that the URL names, else this one. Raises ApiError."""
    month = visit.query.get("month", "")
    if not month:
        return this_month(visit.now)
    if re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", month) is None:
        raise ApiError(400, "invalid_value", f"{month[:20]!r} is not a month, like 2026-11.", "month")
    return month


def this_month(now: int) -> str:
    return datetime.fromtimestamp(now / 1e6, UTC).strftime("%Y-%m")


def tabs(visit: Visit, month: str) -> list[tuple[str, str, bool]]:
    """(title, URL, whether it is this page) of the pages about money that the visitor may see."""
    path = visit.request.url.path
    pages = [("Costs", "/console/money"), ("Months", "/console/money/months")]
    if visit.tenant is None:
        pages += [
            ("Utilization", "/console/money/utilization"),
            ("Margin", "/console/money/margin"),
            ("Prices", "/console/money/prices"),
        ]
    pages.append(("Budgets", "/console/money/budgets"))
    keep = f"?month={month}"
    return [
        (title, url + keep, path == url or (url != "/console/money" and path.startswith(url + "/")))
        for title, url in pages
    ]


def choices(months: Listed[Month], shown: str, now: int) -> list[tuple[str, str]]:
    """Months to choose from, the latest first, as (value, text)."""
    known = {*(month.month for month in months.data), shown, this_month(now)}
    return [(month, month_name(month)) for month in sorted(known, reverse=True)]


def month_name(month: str) -> str:
    return datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC).strftime("%B %Y")


def tenant_link(row: _OfTenant) -> Cell:
    return Cell(row.tenant, href=f"/console/tenants/{quote(row.tenant)}")


def short_seal(row: _Sealed) -> Cell | None:
    """The beginning of a seal, which is enough to compare by eye."""
    return Cell(row.seal, text=f"{row.seal[:16]}…") if row.seal else None


def cents(amount: int | None) -> str | None:
    """Whole cents as a decimal's text."""
    return None if amount is None else decimal_text(amount, 2)


def amount(text: str | None) -> Decimal:
    return Decimal(text) if text else ZERO


def daily(
    values: Iterable[tuple[str, str, float]], *, most: int = 5
) -> tuple[list[str], list[tuple[str, list[float]]]]:
    """The days, and for each of the largest groups its value on each of them; the rest together is the last.
    `values`: (day, group, value)."""
    known = list(values)
    days = sorted({day for day, *_ in known})
    index = {day: n for n, day in enumerate(days)}
    lines: dict[str, list[float]] = {}
    for day, group, value in known:
        lines.setdefault(group, [0.0] * len(days))[index[day]] += value
    ordered = sorted(lines.items(), key=lambda item: (-sum(item[1]), item[0]))
    shown, rest = ordered[:most], [line for _, line in ordered[most:]]
    if rest:
        shown.append((f"{len(rest)} more", [sum(values) for values in zip(*rest, strict=True)]))
    return days, shown


def chart(days: Sequence[str], series: Sequence[tuple[str, list[float]]], unit: str, kind: str) -> Json:
    """What static/charts.js draws."""
    return {
        "x": [int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) for day in days],
        "series": [
            {"name": n, "values": [round(v, 6) for v in values], "unit": unit} for n, values in series
        ],
        "kind": kind,
    }


@dataclass(slots=True)
class DayOfGpus:
    """Mutable while it is summed: what GPUs of a type did on a day."""

    day: str
    gpu_type: str
    provisioned_nano: int = 0
    busy_nano: int = 0
    unused_cost: Decimal | None = ZERO
    """None: a price is missing."""

    @property
    def provisioned(self) -> float:
        return self.provisioned_nano / NANO

    @property
    def busy(self) -> float:
        return self.busy_nano / NANO

    @property
    def share(self) -> float | None:
        """The part of the provisioned time that was busy."""
        return self.busy_nano / self.provisioned_nano if self.provisioned_nano else None


def utilization_by_day(report: CostReport) -> list[DayOfGpus]:
    """`report`: costs by day and GPU type. Busy is what answered requests, also repeated ones."""
    days: dict[tuple[str, str], DayOfGpus] = {}
    unused = [part.rows for part in (report.headroom, report.startup, report.idle) if part is not None]
    for busy, rows in (
        (True, report.rows),
        (True, report.retry_waste.rows),
        *((False, rows) for rows in unused),
    ):
        for row in rows:
            key = (row.day or "", row.gpu_type or "")
            day = days.setdefault(key, DayOfGpus(*key))
            nano = row.nano_gpu_hours or 0
            day.provisioned_nano += nano
            if busy:
                day.busy_nano += nano
            elif row.cost is None or day.unused_cost is None:
                day.unused_cost = None
            else:
                day.unused_cost += Decimal(row.cost)
    return [days[key] for key in sorted(days)]
