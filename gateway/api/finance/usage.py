"""The usage records themselves."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.api.deps import FinanceKey, StateDep
from gateway.api.finance.common import From, Month, Tenant, To, period_of, tenants_of
from gateway.costs.periods import Period, iso
from gateway.errors import FlorinError
from gateway.metering.records import UsageRecord

router = APIRouter()


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
    within = period_of(start, to, month)
    await state.meter.flush()
    tenants = tenants_of(key, tenant)
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
    "adapter_loads",
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
