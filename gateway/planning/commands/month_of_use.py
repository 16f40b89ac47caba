"""A month's real traffic, from the finance API."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.commands.client import Api, Json, UsageError
from gateway.costs.reports.commands.report import cost_pages
from gateway.costs.reports.schemas.costs import CostRow
from gateway.planning.traffic import AdapterUse


@dataclass(frozen=True, slots=True)
class MonthOfUse:
    month: str
    base_model: str
    busiest_hour: str
    """Start, ISO 8601."""
    uses: tuple[AdapterUse, ...]
    """The adapters called in that hour."""
    tokens: int
    """Prompt and output tokens of the whole month."""
    hours: int
    """How many the month has."""


def last_month(now: datetime) -> str:
    return f"{now.replace(day=1) - timedelta(days=1):%Y-%m}"


def month_of_use(api: Api, month: str, base_model: str | None) -> MonthOfUse:
    """Raises UsageError, ApiError, UnreachableError."""
    rows = _rows(api, {"by": "hour,base_model", "month": month})
    bases = sorted({row.base_model or "" for row in rows})
    if base_model is None and len(bases) == 1:
        [base_model] = bases
    rows = [row for row in rows if row.base_model == base_model]
    if not rows:
        if base_model is None and bases:
            raise UsageError(f"{month} has usage of several base models: choose one with --base-model.")
        raise UsageError(f"{month} has no usage{f' of {base_model}' if base_model else ''}.")
    requests = Counter[str]()
    for row in rows:
        requests[row.hour or ""] += row.requests
    busiest = max(sorted(requests), key=lambda hour: requests[hour])
    start = datetime.fromisoformat(busiest)
    within = {"from": _iso(start), "to": _iso(start + timedelta(hours=1))}
    uses = tuple(
        AdapterUse(row.adapter or "", row.requests, row.prompt_tokens, row.completion_tokens)
        for row in _rows(api, {"by": "adapter,base_model", **within})
        if row.base_model == base_model
    )
    tokens = sum(row.prompt_tokens + row.completion_tokens for row in rows)
    return MonthOfUse(month, str(base_model), busiest, uses, tokens, _hours(month))


def _rows(api: Api, params: Json) -> list[CostRow]:
    return [row for page in cost_pages(api, params) for row in page.rows if row.requests]


def _hours(month: str) -> int:
    start = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    end = (start + timedelta(days=32)).replace(day=1)
    return (end - start).days * 24


def _iso(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
