"""/finance/v1: what was used and what it cost. Role finance or operator; a tenant's key sees its own rows."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.api.deps import FinanceKey, StateDep
from gateway.costs.periods import Period, PeriodError, iso, period
from gateway.costs.report import DEFAULT_BY, DIMENSIONS, cost_report
from gateway.errors import FlorinError
from gateway.metering.records import UsageRecord
from gateway.tenants.directory import Key, Role

router = APIRouter(prefix="/finance/v1", tags=["finance"])

From = Annotated[str | None, Query(alias="from", description="ISO 8601, UTC; included.")]
To = Annotated[str | None, Query(description="ISO 8601, UTC; not included.")]
Month = Annotated[str | None, Query(description="`2026-11`, instead of from and to.")]
Tenant = Annotated[str | None, Query(description="Only this tenant's rows.")]


@router.get("/costs")
async def costs(
    *,
    key: FinanceKey,
    state: StateDep,
    by: Annotated[str, Query(description=f"Of {', '.join(DIMENSIONS)}, by commas.")] = ",".join(DEFAULT_BY),
    start: From = None,
    to: To = None,
    month: Month = None,
    tenant: Tenant = None,
) -> dict[str, Any]:
    """Requests, tokens, GPU-time and cost, grouped. This month if no time is given. `cost` is an exact
    decimal, or null where a price is missing; `missing_prices` says of which GPU types. `complete` is false
    while this worker brings a backlog of records into the ledger."""
    dimensions = _dimensions(by)
    within = _period(start, to, month)
    complete = await state.meter.flush()
    report = await asyncio.to_thread(
        cost_report, state.ledger, within, by=dimensions, tenants=_tenants(key, tenant)
    )
    return {**report, "complete": complete}


@router.get("/usage")
async def usage(
    *,
    key: FinanceKey,
    state: StateDep,
    start: From = None,
    to: To = None,
    month: Month = None,
    tenant: Tenant = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[str | None, Query(max_length=200, description="`next` of the page before.")] = None,
) -> dict[str, Any]:
    """The usage records themselves, by the time at which they ended. `next` is null on the last page."""
    within = _period(start, to, month)
    await state.meter.flush()
    tenants = _tenants(key, tenant)
    if len(set(tenants)) > 1:  # not yours: as if there were none
        return _page([], within, limit)
    records = await asyncio.to_thread(
        state.ledger.usage,
        start=within.start,
        end=within.end,
        tenant=tenants[0] if tenants else None,
        after=None if after is None else _position(after),
        limit=limit + 1,
    )
    return _page(records, within, limit)


def _dimensions(by: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in by.split(",")))
    for name in names:
        if name not in DIMENSIONS:
            raise FlorinError(
                "invalid_value", f"by: {name[:40]!r} is not one of {', '.join(DIMENSIONS)}.", param="by"
            )
    return names


def _period(start: str | None, to: str | None, month: str | None) -> Period:
    try:
        return period(start=start, end=to, whole_month=month, now=time.time_ns() // 1000)
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error


def _tenants(key: Key, asked: str | None) -> tuple[str, ...]:
    """Whose rows are shown: the tenant asked for, and of a tenant's key its own only."""
    own = (key.tenant,) if key.role is Role.TENANT else ()
    return own if asked is None else (*own, asked)


def _page(records: list[UsageRecord], within: Period, limit: int) -> dict[str, Any]:
    more = len(records) > limit
    shown = records[:limit]
    return {
        "from": iso(within.start),
        "to": iso(within.end),
        "data": [_document(record) for record in shown],
        "next": _token(shown[-1]) if more else None,
    }


_FIELDS = (
    "id", "request_id", "attempt", "tenant", "key_id", "adapter", "version", "base_model", "engine",
    "gpu_type", "gpu_count", "dispatched", "first_token", "ended", "prompt_tokens", "cached_tokens",
    "completion_tokens", "reasoning_tokens", "n", "usage_source", "outcome", "billable",
)  # fmt: skip  # one name a line says no more


def _document(record: UsageRecord) -> dict[str, Any]:
    """Times in Unix microseconds, as they are kept."""
    return {name: getattr(record, name) for name in _FIELDS}


def _token(record: UsageRecord) -> str:
    return base64.urlsafe_b64encode(f"{record.ended} {record.id}".encode()).decode()


def _position(token: str) -> tuple[int, str]:
    try:
        text = base64.urlsafe_b64decode(token.encode()).decode()
    except (ValueError, binascii.Error):
        text = ""
    match = re.fullmatch(r"(\d{1,18}) ([0-9a-f-]{36})", text, re.ASCII)
    if match is None:
        raise FlorinError("invalid_value", "after: use `next` of the page before, as it is.", param="after")
    return int(match[1]), match[2]
