"""The usage records themselves."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.api.deps import FinanceKey, StateDep
from gateway.api.finance.common import (
    After,
    From,
    Month,
    Tagged,
    Tenant,
    To,
    period_of,
    position,
    tenants_of,
    token,
)
from gateway.costs.periods import Period, iso
from gateway.errors import FlorinError
from gateway.metering.records import UsageRecord

_TIME = re.compile(r"-?\d{1,18}", re.ASCII)
_ID = re.compile(r"[0-9a-f-]{36}")

router = APIRouter(route_class=Tagged)


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
    after: After = None,
) -> dict[str, Any]:
    """The usage records themselves, by the time at which they ended. `next` is null on the last page.
    `complete` is false while records are on their way into the ledger."""
    within = period_of(start, to, month)
    complete = await state.meter.flush()
    tenants = tenants_of(key, tenant)
    if len(set(tenants)) > 1:  # not yours: as if there were none
        return {**_page([], within, limit), "complete": complete}
    records = await asyncio.to_thread(
        state.ledger.usage,
        start=within.start,
        end=within.end,
        tenant=tenants[0] if tenants else None,
        after=None if after is None else position_of(after),
        limit=limit + 1,
    )
    return {**_page(records, within, limit), "complete": complete}


def _page(records: list[UsageRecord], within: Period, limit: int) -> dict[str, Any]:
    more = len(records) > limit
    shown = records[:limit]
    return {
        "from": iso(within.start),
        "to": iso(within.end),
        "data": [_document(record) for record in shown],
        "next": token_of(shown[-1].ended or 0, shown[-1].id) if more else None,
    }


_FIELDS = (
    "id", "request_id", "attempt", "tenant", "key_id", "adapter", "version", "base_model", "engine",
    "gpu_type", "gpu_count", "dispatched", "first_token", "ended", "prompt_tokens", "cached_tokens",
    "completion_tokens", "reasoning_tokens", "n", "usage_source", "outcome", "billable",
    "adapter_loads", "hour_marks",
)  # fmt: skip  # one name a line says no more


def _document(record: UsageRecord) -> dict[str, Any]:
    """Times in Unix microseconds, as they are kept."""
    return {name: getattr(record, name) for name in _FIELDS}


def token_of(ended: int, record_id: str) -> str:
    return token((str(ended), record_id))


def position_of(after: str) -> tuple[int, str]:
    ended, record_id = position(after, 2)
    if not (_TIME.fullmatch(ended) and _ID.fullmatch(record_id)):
        raise FlorinError("invalid_value", "after: use `next` of the page before, as it is.", param="after")
    return int(ended), record_id
