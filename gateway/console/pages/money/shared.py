"""Common to the pages about money: months, tabs, and figures of reports. Pure, but for `month_of`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

from gateway.console.api_client import ApiError
from gateway.console.tables import Cell
from gateway.console.visit import Visit
from gateway.units import decimal_text

Json = dict[str, Any]
ZERO: Final = Decimal(0)


def month_of(visit: Visit) -> str:
    """The month that the URL names, else this one. Raises ApiError."""
    asked = visit.query.get("month", "")
    if not asked:
        return this_month(visit.now)
    if re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", asked) is None:
        raise ApiError(400, "invalid_value", f"{asked[:20]!r} is not a month, like 2026-11.", "month")
    return asked


def this_month(now: int) -> str:
    return datetime.fromtimestamp(now / 1e6, UTC).strftime("%Y-%m")


def tabs(visit: Visit, month: str) -> list[tuple[str, str, bool]]:
    """(title, URL, whether it is this page) of the pages about money that the visitor may see."""
    path = visit.request.url.path
    found = [("Costs", "/console/money"), ("Months", "/console/money/months")]
    if visit.tenant is None:
        found += [
            ("Utilisation", "/console/money/utilisation"),
            ("Margin", "/console/money/margin"),
            ("Prices", "/console/money/prices"),
        ]
    found.append(("Budgets", "/console/money/budgets"))
    keep = f"?month={month}"
    return [
        (title, url + keep, path == url or (url != "/console/money" and path.startswith(url + "/")))
        for title, url in found
    ]


def choices(months: Iterable[str], shown: str, now: int) -> list[tuple[str, str]]:
    """Months to choose from, the latest first, as (value, text)."""
    known = sorted({*months, shown, this_month(now)}, reverse=True)
    return [(month, month_name(month)) for month in known]


def month_name(month: str) -> str:
    return datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC).strftime("%B %Y")


def tenant_link(row: Json) -> Cell:
    return Cell(row["tenant"], href=f"/console/tenants/{quote(row['tenant'])}")


def short_seal(row: Json) -> Cell | None:
    """The beginning of a seal, which is enough to compare by eye."""
    return Cell(row["seal"], text=row["seal"][:16] + "…") if row.get("seal") else None


def cents(amount: int | None) -> str | None:
    """Whole cents as a decimal's text."""
    return None if amount is None else decimal_text(amount, 2)


def amount(text: str | None) -> Decimal:
    return Decimal(text) if text else ZERO


def daily(
    rows: Sequence[Json], group: str, value: str, *, most: int = 5
) -> tuple[list[str], list[tuple[str, list[float]]]]:
    """The days, and for each of the largest groups its value on each of them; the rest together is the last.
    `rows` have `day`, `group` and `value` (number or decimal's text)."""
    days = sorted({row["day"] for row in rows})
    index = {day: n for n, day in enumerate(days)}
    found: dict[str, list[float]] = {}
    for row in rows:
        line = found.setdefault(str(row[group]), [0.0] * len(days))
        line[index[row["day"]]] += float(row[value] or 0)
    ordered = sorted(found.items(), key=lambda item: (-sum(item[1]), item[0]))
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


def utilisation_by_day(report: Json) -> list[Json]:
    """For each day and GPU type: provisioned and busy GPU-hours, the part that was busy, and what the rest
    cost. `report`: costs by day and GPU type. Busy is what answered requests, also repeated ones."""
    found: dict[tuple[str, str], Json] = {}
    parts = {"rows": report["rows"]}
    parts |= {name: report[name]["rows"] for name in ("retry_waste", "headroom", "startup", "idle")}
    for part, rows in parts.items():
        for row in rows:
            at = (row["day"], row["gpu_type"])
            line = found.setdefault(
                at,
                {
                    "day": at[0],
                    "gpu_type": at[1],
                    "provisioned": 0,
                    "busy": 0,
                    "unused_cost": ZERO,
                    "priced": True,
                },
            )
            line["provisioned"] += row["nano_gpu_hours"]
            if part in {"rows", "retry_waste"}:
                line["busy"] += row["nano_gpu_hours"]
            elif row["cost"] is None:
                line["priced"] = False
            else:
                line["unused_cost"] += Decimal(row["cost"])
    for line in found.values():
        line["share"] = line["busy"] / line["provisioned"] if line["provisioned"] else None
        line["provisioned"] /= 1e9
        line["busy"] /= 1e9
        if not line.pop("priced"):
            line["unused_cost"] = None
    return [found[at] for at in sorted(found)]
