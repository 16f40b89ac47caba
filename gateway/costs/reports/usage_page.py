"""Renders a page of usage records as JSON, outside the event loop: a thousand would block it."""

from __future__ import annotations

import orjson

from gateway.costs.proofs.merkle import WITHHELD_FIELDS
from gateway.metering.ledger.ledger import Ledger

_FIELDS = (
    "id", "request_id", "attempt", "tenant", "key_id", "adapter", "version", "base_model", "engine",
    "gpu_type", "gpu_count", "dispatched", "first_token", "ended", "prompt_tokens", "cached_tokens",
    "completion_tokens", "reasoning_tokens", "n", "usage_source", "outcome", "billable",
    "adapter_loads", "hour_marks", "end_user", "tag", "cost_centre", "service_tier",
)  # fmt: skip  # one name a line says no more


def usage_page(
    ledger: Ledger,
    *,
    start: int,
    end: int,
    tenant: str | None,
    after: tuple[int, str] | None,
    limit: int,
    for_tenant: bool = False,
) -> tuple[bytes, tuple[int, str] | None]:
    """A JSON array of at most `limit` records, with times in Unix microseconds as stored, and the position of
    the last if there are more. `for_tenant`: a tenant's key asks, which does not see the engine. Raises
    LedgerUnavailableError."""
    found = ledger.usage(start=start, end=end, tenant=tenant, after=after, limit=limit + 1)
    shown = found[:limit]
    last = (shown[-1].ended or 0, shown[-1].id) if len(found) > limit else None
    names = [name for name in _FIELDS if not (for_tenant and name in WITHHELD_FIELDS)]
    return orjson.dumps([{name: getattr(record, name) for name in names} for record in shown]), last
