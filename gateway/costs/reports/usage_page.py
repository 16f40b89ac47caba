"""Renders a page of usage records as JSON, outside the event loop: a thousand would block it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import orjson

from gateway.costs.merkle import WITHHELD_FIELDS
from gateway.costs.owner import Owner
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.records import UsageRecord

_FIELDS = (
    "id", "request_id", "attempt", "tenant", "key_id", "adapter", "version", "base_model", "engine",
    "gpu_type", "gpu_count", "dispatched", "first_token", "ended", "prompt_tokens", "cached_tokens",
    "completion_tokens", "reasoning_tokens", "n", "usage_source", "outcome", "billable",
    "adapter_loads", "hour_marks", "end_user", "tag", "cost_centre", "service_tier", "task",
)  # fmt: skip  # one name a line says no more


def usage_page(
    ledger: Ledger,
    *,
    start: int,
    end: int,
    tenant: str | None,
    after: tuple[int, str] | None,
    limit: int,
    adapter: str | None = None,
    outcomes: Collection[str] | None = None,
    newest_first: bool = False,
    owner: Owner | None = None,
) -> tuple[bytes, tuple[int, str] | None]:
    """A JSON array of at most `limit` records, with times in Unix microseconds as stored, and the position of
    the last if there are more. `owner`: a tenant's key asks, which sees its own and not the engine. Raises
    LedgerUnavailableError."""
    records = ledger.usage(
        start=start if owner is None else max(start, owner.since),
        end=end,
        tenant=tenant,
        dispatched_from=None if owner is None else owner.since,
        after=after,
        limit=limit + 1,
        adapter=adapter,
        outcomes=outcomes,
        newest_first=newest_first,
    )
    shown = records[:limit]
    last = (shown[-1].ended or 0, shown[-1].id) if len(records) > limit else None
    return _rendered(shown, for_tenant=owner is not None), last


def request_page(ledger: Ledger, *, request_id: str, owner: Owner | None) -> tuple[bytes, int]:
    """A JSON array of the attempts of one request, as in `usage_page`, and how many they are. Raises
    LedgerUnavailableError."""
    attempts = ledger.attempts(request_id)
    shown = [r for r in attempts if owner is None or owner.may_see(r.tenant, r.dispatched)]
    return _rendered(shown, for_tenant=owner is not None), len(shown)


def _rendered(records: Iterable[UsageRecord], *, for_tenant: bool) -> bytes:
    names = [name for name in _FIELDS if not (for_tenant and name in WITHHELD_FIELDS)]
    return orjson.dumps([{name: getattr(record, name) for name in names} for record in records])
